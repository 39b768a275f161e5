"""Prefect's settings on this machine: a folder for its database, and ways past proxies."""

import errno
import ipaddress
import os
import sqlite3
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

from prefect.settings import PREFECT_API_URL, PREFECT_HOME

from gaitforge.common.locks import exclusive_lock

ROOM_BYTES = 16 * 1024**2
"""What a server's database and log take at least; a first start writes about half of it."""


def check_prefect_home() -> None:
    """Make the folder of a server that starts here.

    ValueError where it cannot be written, its disk is full, or it takes no SQLite database.
    """
    home = PREFECT_HOME.value()
    advice = "set PREFECT_HOME to another folder"
    try:
        home.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=home) as probe:
            # Written, as a quota does not show in the disk's free bytes.
            probe.write(bytes(ROOM_BYTES))
            probe.flush()
            os.fsync(probe.fileno())
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise ValueError(
                f"Prefect's folder {home} has no room: {error.strerror} (a server needs "
                f"{ROOM_BYTES // 1024**2} MB); make room, or {advice}"
            ) from None
        raise ValueError(f"Prefect cannot write {home}: {error.strerror}; {advice}") from None
    try:
        with tempfile.TemporaryDirectory(dir=home) as folder:
            database = sqlite3.connect(Path(folder, "probe.db"), timeout=5.0)
            with closing(database):
                database.execute("PRAGMA journal_mode=WAL")  # as Prefect's own
                database.execute("CREATE TABLE probe (number INTEGER)")
                database.commit()
    except (sqlite3.Error, OSError) as error:
        raise ValueError(
            f"Prefect's folder {home} takes no SQLite database ({error}); {advice} on a local disk"
        ) from None


@contextmanager
def first_start() -> Iterator[None]:
    """Start one server at a time in Prefect's folder.

    Each start migrates the database, and two of a new one at a time fail.
    """
    with exclusive_lock(PREFECT_HOME.value() / ".gaitforge-start.lock"):
        yield


def bypass_proxies(host: str = "") -> None:
    """Reach this machine and `host` without a proxy, also from processes that start later.

    A server elsewhere that PREFECT_API_URL names is reached by the user's proxy; ValueError if
    that is a SOCKS proxy and the package for it is missing.
    """
    server = urlsplit(PREFECT_API_URL.value() or "").hostname or "localhost"
    listed = ",".join(os.environ.get(name, "") for name in ("no_proxy", "NO_PROXY")).split(",")
    if "*" in listed:  # no proxy for any host
        return
    direct = ["127.0.0.1", "localhost", "::1", host, server if is_loopback(server) else ""]
    names = ",".join(dict.fromkeys(name.strip() for name in listed + direct if name.strip()))
    os.environ["no_proxy"] = os.environ["NO_PROXY"] = names
    # Without that package httpx makes no client at all, not even for hosts without a proxy.
    for name, proxy in list(os.environ.items()) if find_spec("socksio") is None else ():
        if name.lower().endswith("_proxy") and proxy.lower().startswith("socks"):
            if not is_loopback(server):
                raise ValueError(f"{name} is a SOCKS proxy; it needs: pip install 'httpx[socks]'")
            print(f"without 'httpx[socks]', {name} is not used", file=sys.stderr, flush=True)
            del os.environ[name]


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a host."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
