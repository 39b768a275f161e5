"""The server of pages: it shows what was registered, to this machine, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from prefect.settings import (
    PREFECT_HOME,
    PREFECT_SERVER_API_AUTH_STRING,
    temporary_settings,
)

from flows.runners.shown_pages import PAGES_URL, file_address, view_address
from pipeline.serve.pages import serving_pages
from tests.flows.processes import soon


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A server of pages with a home of its own, which flows in this process know."""
    with temporary_settings({PREFECT_HOME: tmp_path / "home"}), serving_pages(0) as url:
        monkeypatch.setenv(PAGES_URL, url)
        yield url


@pytest.fixture
def report(tmp_path: Path) -> Path:
    """A report that links a page beside it, among files that are not to be shown."""
    folder = tmp_path / "my run"
    (folder / "episodes").mkdir(parents=True)
    (folder / "report.html").write_text("<a href=episodes/fcnet.html>")
    (folder / "episodes" / "fcnet.html").write_text("plays")
    (folder / "weights.safetensors").write_text("secret")
    (tmp_path / "other.html").write_text("secret")
    (folder / "leads-out.html").symlink_to(tmp_path / "other.html")
    return folder / "report.html"


def test_a_registered_file_is_shown_with_what_it_links(server: str, report: Path) -> None:
    address = file_address(report)
    assert address.startswith(server)
    shown = httpx.get(address)
    assert (shown.text, shown.headers["content-type"]) == (
        report.read_text(),
        "text/html; charset=utf-8",
    )
    assert httpx.get(str(httpx.URL(address).join("episodes/fcnet.html"))).text == "plays"


@pytest.mark.parametrize(
    "path",
    [
        "weights.safetensors",
        "%2e%2e/other.html",
        "leads-out.html",
        "episodes",
        "",
        "../../view/0123456789abcdef",
        "../../folder/%2e%2e%2f0123/report.html",
        "../../../report.html",
    ],
)
def test_nothing_else_is_shown(server: str, report: Path, path: str) -> None:
    folder = file_address(report).rsplit("/", 1)[0]
    refused = httpx.get(f"{folder}/{path}")
    assert refused.status_code == 404
    assert refused.text.startswith("no such")


def test_other_names_of_this_machine_are_refused(server: str, report: Path) -> None:
    refused = httpx.get(file_address(report), headers={"Host": "evil.example:80"})
    assert refused.status_code == 403


def test_the_password_of_prefects_server_is_asked_for(server: str, report: Path) -> None:
    secret: dict[Any, Any] = {PREFECT_SERVER_API_AUTH_STRING: "anna:hunter2"}
    with temporary_settings(secret), serving_pages(0) as url:
        address = file_address(report).replace(server, url)
        assert httpx.get(address).status_code == 401
        assert httpx.get(address, auth=("anna", "hunter3")).status_code == 401
        assert httpx.get(address, auth=("anna", "hunter2")).status_code == 200


def test_a_view_that_cannot_be_made_says_why(server: str, tmp_path: Path) -> None:
    address = view_address(tmp_path / "<b>gone</b>.zarr")
    assert address is not None
    text = soon(lambda: shown if "http-equiv" not in (shown := httpx.get(address).text) else None)
    assert "gone" in text
    assert "<b>" not in text


def test_without_a_server_of_pages_links_name_files(
    report: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(PAGES_URL, raising=False)
    assert file_address(report) == report.as_uri()
    assert view_address(report) is None
