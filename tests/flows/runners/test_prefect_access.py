"""Ways to Prefect's servers past proxies that answer nothing, and the folder that one needs."""

import errno
import os
import sqlite3
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from prefect.settings import PREFECT_API_URL, PREFECT_HOME, temporary_settings

from gaitforge.common.locks import exclusive_lock
from gaitforge.flows.runners.prefect import bypass_proxies, check_prefect_home, first_start

DEAD = "127.0.0.1:9"
NAMES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


class _Answers(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        """Say what was asked for: a path, or of a proxy a whole address."""
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.path.encode())


@pytest.fixture
def port() -> Iterator[int]:
    """The port of a server on loopback, which also acts as a proxy."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port
    server.shutdown()


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    """No proxy of this machine's own, and none left by a test."""
    for name in NAMES:
        for spelling in (name, name.upper()):
            monkeypatch.setenv(spelling, "")
            monkeypatch.delenv(spelling)


def api(url: str) -> Any:
    """A context with a server of that address, or none."""
    settings: dict[Any, Any] = {PREFECT_API_URL: url or None}
    return temporary_settings(settings)


@pytest.mark.parametrize(
    "proxies",
    [
        {"HTTP_PROXY": f"http://{DEAD}"},
        {"http_proxy": DEAD, "NO_PROXY": "example.org"},
        {"ALL_PROXY": f"http://{DEAD}", "no_proxy": "", "NO_PROXY": "example.org"},
        {"ALL_PROXY": f"socks5://{DEAD}"},
        {"all_proxy": f"socks5h://{DEAD}", "HTTP_PROXY": f"http://{DEAD}", "no_proxy": "a.org"},
        {"ALL_PROXY": f"socks5://{DEAD}", "NO_PROXY": "*"},
    ],
)
@pytest.mark.parametrize("configured", [False, True])
def test_a_server_on_loopback_is_reached_without_the_proxy(
    port: int, proxies: dict[str, str], configured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in proxies.items():
        monkeypatch.setenv(name, value)
    with api(f"http://127.0.0.1:{port}/api" if configured else ""):
        bypass_proxies()
    for host in ("127.0.0.1", "localhost"):
        assert httpx.get(f"http://{host}:{port}/health", timeout=5).text == "/health"


def test_a_server_elsewhere_is_reached_by_the_proxy(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("NO_PROXY", "direct.example")
    with api("http://prefect.example/api"):
        bypass_proxies()
    asked = httpx.get("http://prefect.example/api/health", timeout=5)
    assert asked.text == "http://prefect.example/api/health"
    assert httpx.get(f"http://127.0.0.1:{port}/health", timeout=5).text == "/health"


def test_a_proxy_that_needs_a_package_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", f"socks5://{DEAD}")
    with (
        api("http://prefect.example/api"),
        pytest.raises(ValueError, match=r"ALL_PROXY is a SOCKS proxy; it needs: pip install"),
    ):
        bypass_proxies()


@pytest.mark.parametrize("home", ["file", "file/below", "/proc/prefect"])
def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path, home: str) -> None:
    (tmp_path / "file").touch()
    settings: dict[Any, Any] = {PREFECT_HOME: tmp_path / home}
    with (
        temporary_settings(settings),
        pytest.raises(ValueError, match=r"Prefect cannot write .*; set PREFECT_HOME"),
    ):
        check_prefect_home()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_one_line_before_a_server_starts(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fsync(descriptor: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", fsync)
    settings: dict[Any, Any] = {PREFECT_HOME: tmp_path}
    with (
        temporary_settings(settings),
        pytest.raises(ValueError, match=r"has no room: .*; make room, or set PREFECT_HOME"),
    ):
        check_prefect_home()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_takes_no_database_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def connect(*arguments: Any, **options: Any) -> None:
        raise sqlite3.OperationalError("locking protocol")

    monkeypatch.setattr(sqlite3, "connect", connect)
    settings: dict[Any, Any] = {PREFECT_HOME: tmp_path}
    with (
        temporary_settings(settings),
        pytest.raises(ValueError, match=r"takes no SQLite database \(locking protocol\)"),
    ):
        check_prefect_home()


def test_servers_start_one_at_a_time(tmp_path: Path) -> None:
    settings: dict[Any, Any] = {PREFECT_HOME: tmp_path}
    with temporary_settings(settings), first_start():
        [lock] = tmp_path.iterdir()
        with exclusive_lock(lock, wait=False) as free:
            assert not free
