"""Push files to a dataset's repository on the Hugging Face Hub, in one commit if it takes that.

Large files go first, to the Hub's own storage: an interrupted push sends only what it lacks when it
is repeated, and nothing of it can be seen before the commit.
"""

import hashlib
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from email.utils import parsedate_to_datetime
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from gaitforge.common.errors import DatasetError, missing_package
from gaitforge.common.files import sha256_file
from gaitforge.datasets.layout import ABOUT, CATALOG, EDITS, FOLDERS, TAGS

_ADDRESS = re.compile(r"hf://(?:datasets/)?([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)/?")
_KIND = "dataset"

WAITS = 6
"""Waits for a busy Hub without a success in between."""

FIRST_WAIT_S = 5.0
"""Doubled from wait to wait where the Hub asks for none."""

LONGEST_WAIT_S = 600.0
"""The Hub's own limits are of five minutes."""

_BUSY = (429, 500, 502, 503, 504)
_TOO_MANY = (403, 413)

Result = TypeVar("Result")


def no_line(text: str) -> None:
    """Say nothing."""


def hub_repository(address: str) -> str:
    """`owner/name` of `hf://owner/name`; DatasetError for others, or without the extra."""
    match = _ADDRESS.fullmatch(address)
    if match is None:
        raise DatasetError(f"{address!r:.80} is no repository; give hf://owner/name")
    if find_spec("huggingface_hub") is None:
        raise DatasetError(missing_package("publishing", "huggingface_hub", "hub"))
    return match[1]


def push_files(
    repository: str,
    files: Mapping[str, Path],
    message: str,
    *,
    private: bool,
    revision: str = "",
    say: Callable[[str], object] = no_line,
) -> str:
    """Commit files to a dataset's repository, which is made if absent; returns the commit's URL.

    What the repository has already is not committed again. Files of an earlier push that are not
    among `files` are removed by the last commit: those of a store, and those in the same folders.
    There are several commits where the Hub refuses one of so many files. Then the catalog follows
    the arrays, and the root file and the card come last. The access token is the one of
    `hf auth login` or HF_TOKEN.

    Args:
        files: name in the repository -> local file.
        private: of a new repository.
        revision: branch, made if absent; empty for the main one.
        say: is told of waits for a busy Hub, and of several commits.

    Raises:
        DatasetError: the Hub cannot be reached, refuses, or stays busy.
    """
    from huggingface_hub import HfApi

    api = HfApi(endpoint=os.environ.get("HF_ENDPOINT"))
    push = _Push(api, repository, files, message, revision, say)
    with _refusals(repository):
        push.attempt(lambda: api.create_repo(**push.at, private=private, exist_ok=True))
        if revision:
            push.attempt(lambda: api.create_branch(**push.at, branch=revision, exist_ok=True))
        return push.run()


class _Push:
    """A push: commits until the head of the branch has all files."""

    def __init__(
        self,
        api: Any,
        repository: str,
        files: Mapping[str, Path],
        message: str,
        revision: str,
        say: Callable[[str], object],
    ) -> None:
        self.at: dict[str, Any] = {"repo_id": repository, "repo_type": _KIND}
        self._api = api
        self._files = files
        self._message = message
        self._revision = revision or None
        self._say = say
        self._most = max(1, len(files))
        self._sent: set[str] = set()
        self._url = f"{api.endpoint}/datasets/{repository}/tree/{revision or 'main'}"

    def run(self) -> str:
        """Commit what the head lacks; returns the address of the last commit, or of the branch."""
        busy = 0
        # The head is looked at after every failure: the Hub may have committed all the same.
        while names := self.attempt(self._left):
            try:
                self._commit(names)
            except Exception as error:
                if not _is_busy(error):
                    if not self._fewer(error, names):
                        raise
                    continue
                busy += 1
                self._wait(busy, error)
            else:
                busy = 0
        return self._url

    def attempt(self, request: Callable[[], Result]) -> Result:
        """The result of a request that can be repeated, once the Hub is not busy."""
        for busy in count(1):
            try:
                return request()
            except Exception as error:
                if not _is_busy(error):
                    raise
                self._wait(busy, error)
        raise AssertionError("the last attempt returns or raises")

    def _left(self) -> list[str]:
        """Names of files to add or to remove, in the order of the commits."""
        from huggingface_hub.hf_api import RepoFile

        tree = self._api.list_repo_tree(**self.at, revision=self._revision, recursive=True)
        entries = {entry.path: entry for entry in tree if isinstance(entry, RepoFile)}
        differ = [name for name, path in self._files.items() if not _is_equal(entries, name, path)]
        names = sorted(differ, key=_rank) + _replaced(list(entries), self._files)
        # A listing may lag behind a commit that was answered.
        return [name for name in names if name not in self._sent]

    def _commit(self, names: Sequence[str]) -> None:
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete

        chosen = names if len(names) <= self._most else names[: self._most]
        operations = [
            CommitOperationAdd(name, self._files[name])
            if name in self._files
            else CommitOperationDelete(name)
            for name in chosen
        ]
        done = self._api.create_commit(
            **self.at,
            operations=operations,
            commit_message=self._message,
            revision=self._revision,
        )
        self._sent.update(chosen)
        self._url = str(done.commit_url)

    def _fewer(self, error: Exception, names: Sequence[str]) -> bool:
        """Whether a commit of fewer files may be taken where one was refused; halves it."""
        size = min(self._most, len(names))
        if _status(error) not in _TOO_MANY or size < 2:
            return False
        self._most = size // 2
        self._say(
            f"the Hub refused a commit of {size:,} files ({_status(error)}): trying several of "
            f"{self._most:,}; gaitforge compact makes fewer files of a store"
        )
        return True

    def _wait(self, busy: int, error: Exception) -> None:
        """Wait as the Hub asks, or longer each time; raises the error if it stays busy."""
        wait_s = _asked_wait_s(error)
        if wait_s is None:
            wait_s = FIRST_WAIT_S * 2 ** (busy - 1)
        if busy > WAITS or wait_s > LONGEST_WAIT_S:
            raise error
        reason = _status(error) or type(error).__name__
        self._say(f"the Hub is busy ({reason}): trying again in {wait_s:.0f} s")
        time.sleep(wait_s)


def _status(error: Exception) -> int:
    """The HTTP status of an error; 0 without an answer."""
    return getattr(getattr(error, "response", None), "status_code", 0)


def _is_busy(error: Exception) -> bool:
    """Whether the same request may succeed later, or has succeeded without an answer."""
    from httpx import RemoteProtocolError, TimeoutException

    return _status(error) in _BUSY or isinstance(error, RemoteProtocolError | TimeoutException)


def _asked_wait_s(error: Exception) -> float | None:
    """The wait that an answer asks for: seconds, or a time by the server's clock."""
    headers = getattr(getattr(error, "response", None), "headers", {})
    asked = headers.get("Retry-After", "").strip()
    if asked.isdecimal():
        return float(asked)
    try:
        until = parsedate_to_datetime(asked)
        now = parsedate_to_datetime(headers.get("Date", ""))
        return max(0.0, (until - now).total_seconds())
    except (ValueError, TypeError):
        return None


def _is_equal(entries: Mapping[str, Any], name: str, path: Path) -> bool:
    """Whether the head has a file with this content."""
    entry = entries.get(name)
    if entry is None or entry.size != path.stat().st_size:
        return False
    if entry.lfs is not None:
        return entry.lfs.sha256 == sha256_file(path)
    content = path.read_bytes()
    return entry.blob_id == hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def _rank(name: str) -> int:
    """Place of a file in the order of commits: what readers begin with comes last."""
    top, _, below = name.partition("/")
    if not below:
        return 2
    return 1 if top in (CATALOG, EDITS, TAGS, "meta") else 0


def _replaced(names: Sequence[str], files: Mapping[str, Path]) -> list[str]:
    """Files of a store, or in the folders of `files`, that are not among them."""
    tops = {ABOUT, *FOLDERS, *(name.partition("/")[0] for name in files if "/" in name)}
    return [name for name in names if name not in files and name.partition("/")[0] in tops]


@contextmanager
def _refusals(repository: str) -> Iterator[None]:
    """Turn the Hub's and the network's errors into one line, without the access token."""
    from httpx import HTTPError
    from huggingface_hub import get_token

    try:
        yield
    except (HTTPError, OSError, ValueError) as error:
        text = " ".join(str(error).split()) or type(error).__name__
        token = get_token()
        shown = text.replace(token, "***") if token else text
        raise DatasetError(f"cannot publish to {repository}: {shown:.400}") from None
