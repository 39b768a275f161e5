"""Addresses of pages that `gaitforge serve` shows: reports, cards, and episodes to play.

A browser follows no `file://` link from a server's page, so `gaitforge serve` has a server of pages
(`pipeline/serve/page_server.py`). It shows what a flow has registered, and nothing else:

    <PREFECT_HOME>/gaitforge-pages/<id>.json    {"page": FILE} or {"view": STORE or EVALUATION}
"""

import os
from pathlib import Path
from urllib.parse import quote

from prefect.settings import PREFECT_HOME

from gaitforge.flows.records.records import digest, write_record

PAGES_URL = "GAITFORGE_PAGES_URL"
"""Environment variable of served flows: the server's address."""

PAGE = "page"
VIEW = "view"


def pages_folder() -> Path:
    """Folder of the registered places."""
    return PREFECT_HOME.value() / "gaitforge-pages"


def file_address(path: Path) -> str:
    """The address of a page, which is registered; what it links is shown with it.

    A `file://` one without a server of pages, e.g. in a worker's process.
    """
    path = path.absolute()
    number = _registered(PAGE, str(path))
    return f"{number}/{quote(path.name)}" if number else path.as_uri()


def view_address(source: Path | str) -> str | None:
    """The address of a page that plays episodes, made when it is opened; None without a server.

    Args:
        source: a store or an evaluation's file, as `gaitforge view` takes it.
    """
    return _registered(VIEW, str(source.absolute() if isinstance(source, Path) else source))


def _registered(kind: str, address: str) -> str | None:
    server = os.environ.get(PAGES_URL)
    if server is None:
        return None
    record = {kind: address}
    number = digest(record)
    write_record(pages_folder() / f"{number}.json", record)
    return f"{server}/{kind}/{number}"
