"""The server of pages: it shows what was registered, to this machine, and nothing else."""

from collections.abc import Iterator
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from prefect.settings import (
    PREFECT_HOME,
    PREFECT_SERVER_API_AUTH_STRING,
    temporary_settings,
)

from gaitforge.flows.runners.artifacts import PAGES_URL, file_address, view_address
from gaitforge.pipeline.serve.serving import serving_pages
from tests.flows.processes import soon

REPORT = """
<a href=./episodes/fcnet.html#skill=run><img src="two%20legs.png?1"><a href=leads-out.html>
<a href=leads-in.html><a href=.config/hidden.html><a href=weights.safetensors>
<a href=../other.html><a href="http://127.0.0.1/remote.html"><a href="/rooted.html">
<script>"<a href=said.html>"</script>"""
SECRETS = (
    *("../other.html", ".config/hidden.html", "weights.safetensors", "remote.html", "rooted.html"),
    *("said.html", "unlinked.html", "config.json"),
)


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
    (folder / ".config").mkdir()
    (folder / "report.html").write_text(REPORT)
    (folder / "episodes" / "fcnet.html").write_text("plays")
    (folder / "two legs.png").write_text("pixels")
    for secret in SECRETS:
        (folder / secret).write_text("secret")
    (folder / "leads-out.html").symlink_to(tmp_path / "other.html")
    (folder / "leads-in.html").symlink_to(folder / ".config" / "hidden.html")
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
    assert httpx.get(str(httpx.URL(address).join("two%20legs.png"))).text == "pixels"


@pytest.mark.parametrize(
    "path",
    [
        *SECRETS,
        *("leads-out.html", "leads-in.html", "%2e%2e/other.html", "%2econfig/hidden.html"),
        *("/remote.html", "%2frooted.html", "episodes/..%2funlinked.html", "report.html/x.html"),
        *("unlinked.html?report.html", "unlinked.html%3freport.html", "report.html%00.html"),
        *("episodes", "", "../../view/0123456789abcdef", "../../../report.html"),
        *("../../page/%2e%2e%2f0123/report.html", "../../folder/0123456789abcdef/report.html"),
    ],
)
def test_nothing_else_is_shown(server: str, report: Path, path: str) -> None:
    refused = raw_get(file_address(report).rsplit("/", 1)[0] + f"/{path}")
    assert refused.status in (400, 404)
    assert refused.read().startswith((b"no such", b"this cannot be shown"))


def raw_get(address: str) -> HTTPResponse:
    """An answer to a path as it stands: other clients tidy it."""
    parts = urlsplit(address)
    connection = HTTPConnection(parts.netloc)
    connection.request("GET", address.removeprefix(f"http://{parts.netloc}"))
    return connection.getresponse()


def test_a_page_in_the_home_shows_no_credentials(server: str, tmp_path: Path) -> None:
    for name in (".docker/config.json", ".config/gcloud/application_default_credentials.json"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text("secret")
        folder = file_address(tmp_path / "card.html").rsplit("/", 1)[0]
        assert httpx.get(f"{folder}/{name}").status_code == 404


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
        for wrong in (b"Basic p\xe4ss", "Basic p\u00e4ss\u20ac".encode(), b"\xff\x80"):
            assert httpx.get(address, headers={b"Authorization": wrong}).status_code == 401


def test_a_password_that_is_not_ascii_is_asked_for(server: str, report: Path) -> None:
    secret: dict[Any, Any] = {PREFECT_SERVER_API_AUTH_STRING: "anna:h\u00fcnt\u20acr"}
    with temporary_settings(secret), serving_pages(0) as url:
        address = file_address(report).replace(server, url)
        asked = httpx.get(address)
        assert asked.status_code == 401
        assert "UTF-8" in asked.headers["WWW-Authenticate"]
        assert httpx.get(address, auth=("anna", "hunter")).status_code == 401
        assert httpx.get(address, auth=("anna", "h\u00fcnt\u20acr")).status_code == 200


@pytest.mark.slow
def test_a_view_that_cannot_be_made_says_why(server: str, tmp_path: Path) -> None:
    address = view_address(tmp_path / "<b>gone</b>.zarr")
    assert address is not None
    text = soon(lambda: shown if "http-equiv" not in (shown := httpx.get(address).text) else None)
    assert "gone" in text
    assert "<b>" not in text


def test_without_a_server_links_name_files(report: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PAGES_URL, raising=False)
    assert file_address(report) == report.as_uri()
    assert view_address(report) is None
