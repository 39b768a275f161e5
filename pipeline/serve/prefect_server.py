"""A Prefect server for a `with` block: the configured one, or one that we start."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

import httpx
from prefect.settings import (
    PREFECT_API_AUTH_STRING,
    PREFECT_API_URL,
    PREFECT_HOME,
    PREFECT_SERVER_API_AUTH_STRING,
    temporary_settings,
)

from gaitforge.flows.records.redaction import redacted
from gaitforge.flows.runners.prefect_access import (
    bypass_proxies,
    check_prefect_home,
    first_start,
    is_loopback,
)

LOOPBACK = "127.0.0.1"
PORT = 4200

START_LIMIT_S = 180.0
"""A first start makes the database, which takes a minute on a busy machine."""

SAY_S = 5.0
"""Seconds between the lines about a slow start."""

STOP_LIMIT_S = 15.0

_LEASES = "prefect.server.concurrency.lease_storage"

_ENVIRONMENT = {
    "PREFECT_CLI_PROMPT": "false",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
    # Else the page looks for the API at port 4200 of the browser's machine, wherever it came from.
    "PREFECT_SERVER_UI_API_URL": "/api",
    # Else a server that is killed leaves the slots of its runs taken, and later runs wait for ever.
    "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": f"{_LEASES}.filesystem",
}

_EVERY_ADDRESS = {"0.0.0.0": LOOPBACK, "::": "::1"}
"""Address of a server that listens everywhere -> address to reach it at."""


def configured_server() -> str | None:
    """The API address of the server that PREFECT_API_URL or the active profile names."""
    return PREFECT_API_URL.value()


def check_host(host: str, expose: bool) -> None:
    """ValueError for an address that other machines reach, unless `expose`."""
    if not expose and not is_loopback(host):
        raise ValueError(
            f"'{host}' can be reached from other machines, and who reaches the server can start "
            "runs; give --expose if that is wanted, with a password in "
            "PREFECT_SERVER_API_AUTH_STRING (user:password)"
        )


@contextmanager
def prefect_api(host: str = LOOPBACK, port: int = PORT) -> Iterator[str]:
    """The server's API address, which Prefect's clients in this process and its children use.

    PREFECT_API_URL (or the active profile) names a server that runs already; without it one is
    started at `host` and `port` (0 for a free one), and stopped with the block.

    Raises:
        ValueError: the configured server does not answer, the port is taken, or the server ended
            as it started.
    """
    configured = configured_server()
    if configured:
        bypass_proxies()
        if not _answers(configured):
            raise ValueError(
                f"no Prefect server answers at PREFECT_API_URL={redacted(configured)}; start it, "
                "or unset the variable for a server of this command's own"
            )
        yield configured
        return
    check_prefect_home()
    port = _free_port(host, port)
    reached = _EVERY_ADDRESS.get(host, host)
    bypass_proxies(reached)
    url = f"http://{f'[{reached}]' if ':' in reached else reached}:{port}/api"
    secret = PREFECT_API_AUTH_STRING.value() or PREFECT_SERVER_API_AUTH_STRING.value()
    with (
        _running(host, port, url),
        temporary_settings({PREFECT_API_URL: url, PREFECT_API_AUTH_STRING: secret}),
    ):
        yield url


def server_log(port: int) -> Path:
    """The log file of a server that we started."""
    return PREFECT_HOME.value() / f"gaitforge-server-{port}.log"


@contextmanager
def _running(host: str, port: int, url: str) -> Iterator[None]:
    command = [sys.executable, "-P", "-m", "prefect", "server", "start"]
    with ExitStack() as starting, server_log(port).open("w+") as output:
        starting.enter_context(first_start())
        server = subprocess.Popen(
            [*command, "--host", host, "--port", str(port)],
            env=_ENVIRONMENT | os.environ,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            # Ctrl-C is ours: runs must be able to report while they end.
            start_new_session=True,
        )
        try:
            _await(server, url, output)
            starting.close()
            yield
        finally:
            server.terminate()
            try:
                server.wait(STOP_LIMIT_S)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def _await(server: subprocess.Popen[bytes], url: str, output: IO[str]) -> None:
    started = said_at = time.monotonic()
    end = started + START_LIMIT_S
    while not _answers(url):
        if time.monotonic() - said_at > SAY_S:
            said_at = time.monotonic()
            waited = f"{said_at - started:.0f} s of at most {START_LIMIT_S:.0f} s"
            print(f"the Prefect server starts: {waited}", file=sys.stderr, flush=True)
        ended = server.poll() is not None
        if ended or time.monotonic() > end:
            output.seek(0)
            lines = [line.strip() for line in output if line.strip()]
            why = "ended as it started" if ended else f"did not answer in {START_LIMIT_S:.0f} s"
            raise ValueError(
                f"the Prefect server {why}: {lines[-1] if lines else 'it said nothing'}"
            )
        time.sleep(0.2)


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=5.0).is_success
    except httpx.HTTPError:
        return False


def _free_port(host: str, port: int) -> int:
    """The port if it is free; any free one for 0."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.create_server((host, port), family=family) as listener:
            return listener.getsockname()[1]
    except OSError as error:
        raise ValueError(
            f"cannot listen at {host}:{port}: {error.strerror}; if a Prefect server is there, name "
            f"it in PREFECT_API_URL, or choose another --port"
        ) from None
