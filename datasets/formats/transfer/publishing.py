"""Push files to a dataset's repository on the Hugging Face Hub, in one commit.

Large files go first, to the Hub's own storage: an interrupted push sends only what it lacks when it
is repeated, and nothing of it can be seen before the commit.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gaitforge.datasets.errors import DatasetError, missing_package
from gaitforge.datasets.layout import ABOUT, FOLDERS

_ADDRESS = re.compile(r"hf://(?:datasets/)?([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)/?")
_KIND = "dataset"


def hub_repository(address: str) -> str:
    """`owner/name` of `hf://owner/name`; DatasetError for others, or without the extra."""
    match = _ADDRESS.fullmatch(address)
    if match is None:
        raise DatasetError(f"{address!r:.80} is no repository; give hf://owner/name")
    if find_spec("huggingface_hub") is None:
        raise DatasetError(missing_package("publishing", "huggingface_hub", "hub"))
    return match[1]


def push_files(
    repository: str, files: Mapping[str, Path], message: str, *, private: bool, revision: str = ""
) -> str:
    """Commit files to a dataset's repository, which is made if absent; returns the commit's URL.

    Files of an earlier push that are not among `files` are removed by the same commit: those of
    a store, and those in the same folders. The access token is the one of `hf auth login` or
    HF_TOKEN.

    Args:
        files: name in the repository -> local file.
        private: of a new repository.
        revision: branch, made if absent; empty for the main one.

    Raises:
        DatasetError: the Hub cannot be reached, or refuses.
    """
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi

    api = HfApi(endpoint=os.environ.get("HF_ENDPOINT"))
    at: dict[str, Any] = {"repo_id": repository, "repo_type": _KIND}
    with _refusals(repository):
        api.create_repo(**at, private=private, exist_ok=True)
        if revision:
            api.create_branch(**at, branch=revision, exist_ok=True)
        there = api.list_repo_files(**at, revision=revision or None)
        operations: Sequence[Any] = [
            *(CommitOperationAdd(name, path) for name, path in files.items()),
            *(CommitOperationDelete(name) for name in _replaced(there, files)),
        ]
        done = api.create_commit(
            **at, operations=operations, commit_message=message, revision=revision or None
        )
    return str(done.commit_url)


def _replaced(there: Sequence[str], files: Mapping[str, Path]) -> list[str]:
    """Files of a store, or in the folders of `files`, that are not among them."""
    tops = {ABOUT, *FOLDERS, *(name.partition("/")[0] for name in files if "/" in name)}
    return [name for name in there if name not in files and name.partition("/")[0] in tops]


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
