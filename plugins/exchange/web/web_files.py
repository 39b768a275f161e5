"""The files of a store at an https:// or hf:// address, in the form of a bucket that is read only.

What is listed comes from the store's manifest; what is read is checked against its SHA-256 there,
and objects of arrays against that in the catalog. A request that is cut goes on where it was cut.
Without the server, what the mirror on disk has is read.
"""

import hashlib
import os
import re
import time
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

from gaitforge.common.errors import DatasetError, StorageError, first_line, missing_package
from gaitforge.common.files import is_hidden, join_inside, temporary_file
from gaitforge.datasets.layout import OVERLAYS, PARTS, ROOT_FILE
from gaitforge.datasets.storage.s3 import Bucket, Listed
from gaitforge.plugins.exchange.web.cache import BOUND, mirrors_folder
from gaitforge.plugins.exchange.web.manifest import MANIFEST, ListedFile, read_manifest

ATTEMPTS = 8
"""Requests in a row without a new byte before an object is given up."""
ATTEMPTS_WITH_MIRROR = 2
"""The same for the manifest, where the mirror has one to go on with."""
FIRST_WAIT_S = 0.25
LONGEST_WAIT_S = 20.0
FRESH_S = 20.0
"""Seconds for which a manifest is not asked for again."""
HUB = "https://huggingface.co"

_HUB_URL = re.compile(
    r"hf://(?:datasets/)?(?P<name>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)"
    rf"(?:@(?P<revision>[\w.-]+))?(?P<overlay>/{OVERLAYS}/\w[\w.-]*)?/*"
)
_OVERLAY_URL = re.compile(rf"(?P<parent>.+)/(?P<folder>{OVERLAYS}/[^/]+)")
"""The store of an added field, whose files are in the manifest of the store that it lies in."""
_WEB_URL = re.compile(r"https?://[^?#\s@]+")


class WebFiles(Bucket):
    """The files below an address, which nobody can write through it."""

    def __init__(self, url: str) -> None:
        """Take an address; nothing is asked for yet.

        Raises:
            DatasetError: no such address can be, or a package is missing.
        """
        if find_spec("obstore") is None:
            raise DatasetError(missing_package(url, "obstore", "s3"))
        self.url, base, headers = _place(url)
        self.endpoint = ""
        self._request = _requests(base, headers)
        overlay = _OVERLAY_URL.fullmatch(base)
        self._request_parent = _requests(overlay["parent"], headers) if overlay else None
        self._overlay = f"{overlay['folder']}/" if overlay else ""
        self._manifest: dict[str, ListedFile] = {}
        self._asked = float("-inf")

    @property
    def mirror(self) -> Path:
        """Folder of the store's mirror, see `cache.mirrors_folder`."""
        return mirrors_folder() / hashlib.sha256(self.url.encode()).hexdigest()[:16]

    def children(self, folder: str) -> list[str]:
        """Names directly below `folder` in the manifest, sorted; a folder's ends in "/"."""
        prefix = f"{folder}/" if folder else ""
        names = set[str]()
        for key in self._files():
            if key.startswith(prefix):
                name, slash, _ = key.removeprefix(prefix).partition("/")
                names.add(name + slash)
        return sorted(name for name in names if not is_hidden(name))

    def list(self, prefix: str) -> dict[str, Listed]:
        """Key -> size of the files below a prefix, and in place of a time a number of its content.

        Raises:
            DatasetError: objects of arrays, which no manifest lists.
        """
        if prefix.startswith(f"{PARTS}/"):
            raise DatasetError(f"{self.url} cannot be listed; make a local copy: gaitforge get")
        files = self._files()
        return {
            key: Listed(listed.size, _stamp(listed.sha256))
            for key, listed in sorted(files.items())
            if key.startswith(prefix)
        }

    def read(self, key: str) -> bytes | None:
        """An object's content; None if there is none of this name.

        Raises:
            StorageError: the server fails, or a file is not what the manifest says.
        """
        files = self._files()
        listed = files.get(key)
        if listed is None and not key.startswith(f"{PARTS}/"):
            return None
        kept = join_inside(self.mirror, key)
        if listed is not None and _is_kept(kept, listed):
            return kept.read_bytes()
        content = self._request(key)
        if listed is None:
            BOUND.fetched(len(content or b""))
        elif content is not None and _differs(content, listed):
            content = self._read_anew(key)
        return content

    def create(self, key: str, content: bytes) -> bool:
        """Refuse to write."""
        self._refuse()

    def delete(self, keys: Iterable[str]) -> None:
        """Refuse to remove."""
        self._refuse()

    def now_ns(self) -> int:
        """Refuse to tell the time, which only those ask for who remove."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise DatasetError(f"{self.url} is read only; make a local copy: gaitforge get")

    def _read_anew(self, key: str) -> bytes | None:
        """A file after a new manifest: the dataset may have been published again meanwhile."""
        self._asked = float("-inf")
        listed = self._files().get(key)
        content = self._request(key)
        if content is None or listed is None or _differs(content, listed):
            raise StorageError(f"{self.url}: {key} does not have the SHA-256 of {MANIFEST}")
        return content

    def _files(self) -> dict[str, ListedFile]:
        """The manifest, at most `FRESH_S` old; that of the mirror where the server is away."""
        if time.monotonic() - self._asked < FRESH_S:
            return self._manifest
        kept = self.mirror / MANIFEST
        has_mirror = kept.is_file()
        try:
            content = self._ask_manifest(ATTEMPTS_WITH_MIRROR if has_mirror else ATTEMPTS)
        except StorageError:
            if not has_mirror:
                raise
            content = kept.read_bytes()
        if content is None:
            raise DatasetError(
                f"{self.url} has no {MANIFEST}; whoever made the store writes it: "
                "gaitforge publish, or gaitforge manifest STORE"
            )
        files = read_manifest(content, self.url)
        below = self._overlay if f"{self._overlay}{ROOT_FILE}" in files else ""
        self._manifest = {
            name.removeprefix(below): listed
            for name, listed in files.items()
            if name.startswith(below)
        }
        _keep_manifest(kept, content)
        self._asked = time.monotonic()
        return self._manifest

    def _ask_manifest(self, attempts: int) -> bytes | None:
        """The manifest with this store's files: of an added field, that of the whole store."""
        if self._request_parent is not None:
            content = _not_a_page(self._request_parent(MANIFEST, attempts))
            if content and self._overlay + ROOT_FILE in read_manifest(content, self.url):
                return content
        return _not_a_page(self._request(MANIFEST, attempts))


def _not_a_page(content: bytes | None) -> bytes | None:
    """None for a page, with which some servers answer in place of a file that is absent."""
    return None if content is None or content.lstrip().startswith(b"<") else content


def _place(url: str) -> tuple[str, str, dict[str, str]]:
    """The address in one form, the web folder that it means, and headers for its requests.

    Raises:
        DatasetError: it is none; it is not shown where it may hold a password.
    """
    hub = _HUB_URL.fullmatch(url)
    if hub is not None:
        revision = hub["revision"] or "main"
        base = os.environ.get("HF_ENDPOINT", HUB).rstrip("/")
        token = _hub_token()
        headers = {"authorization": f"Bearer {token}"} if token else {}
        address = f"hf://datasets/{hub['name']}"
        address += f"@{hub['revision']}" if hub["revision"] else ""
        overlay = hub["overlay"] or ""
        folder = f"{base}/datasets/{hub['name']}/resolve/{revision}{overlay}"
        return address + overlay, folder, headers
    if not _WEB_URL.fullmatch(url):
        raise DatasetError(
            "not a store's address; use hf://datasets/OWNER/NAME or https://HOST/FOLDER, without "
            "passwords, ? and #"
        )
    return url.rstrip("/"), url.rstrip("/"), {}


def _hub_token() -> str:
    """The access token of `hf auth login` or HF_TOKEN; empty where there is none."""
    if find_spec("huggingface_hub") is None:
        return os.environ.get("HF_TOKEN", "")
    from huggingface_hub import get_token

    return get_token() or ""


def _requests(base: str, headers: dict[str, str]) -> Callable[..., bytes | None]:
    """What reads a file below a web folder; None if there is none of this name."""
    import obstore
    from obstore.exceptions import BaseError
    from obstore.store import HTTPStore

    options: Any = {"allow_http": base.startswith("http://"), "timeout": "60s"}
    if headers:
        options["default_headers"] = headers
    # The attempts are ours, since only they can go on where an answer was cut.
    store = HTTPStore.from_url(base, client_options=options, retry_config={"max_retries": 0})

    def read(key: str, attempts: int = ATTEMPTS) -> bytes | None:
        pieces: list[Any] = []  # buffers, which are copied once, in the end
        length = 0
        failed = 0
        while True:
            before = length
            try:
                chosen: Any = {"range": {"offset": before}} if before else {}
                answer = obstore.get(store, key, options=chosen)
                for piece in answer.stream(min_chunk_size=1):  # as it comes: a cut loses none
                    pieces.append(piece)
                    length += len(piece)
            except FileNotFoundError:
                return None
            except (BaseError, OSError) as error:
                failed = 1 if length > before else failed + 1
                if failed >= attempts:
                    problem = f"{base}: {key} cannot be read: {first_line(error):.200}"
                    raise StorageError(problem) from error
                if failed % 2 == 0 and length == before:
                    pieces.clear()  # the server may not serve ranges
                    length = 0
                time.sleep(min(LONGEST_WAIT_S, FIRST_WAIT_S * 2**failed))
            else:
                return b"".join(pieces)

    return read


def _differs(content: bytes, listed: ListedFile) -> bool:
    return hashlib.sha256(content).hexdigest() != listed.sha256


def _is_kept(path: Path, listed: ListedFile) -> bool:
    """Whether the mirror has a file as the manifest says."""
    return path.is_file() and path.stat().st_size == listed.size and not _differs(
        path.read_bytes(), listed
    )  # fmt: skip


def _stamp(sha256: str) -> int:
    """A time (ns) that a copy gets in place of the server's, so that other content is noticed."""
    return int(sha256[:13], 16) // 1_000_000 * 1_000_000


def _keep_manifest(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with temporary_file(path) as temporary:
        temporary.write_bytes(content)
        os.replace(temporary, path)
