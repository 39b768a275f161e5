"""Prefect's settings on this machine: a folder for its database, and ways past proxies."""

import ipaddress
import os
import sys
import tempfile
from importlib.util import find_spec
from urllib.parse import urlsplit

from prefect.settings import PREFECT_API_URL, PREFECT_HOME


def check_prefect_home() -> None:
    """Make the folder of a server that starts here; ValueError where it cannot be written."""
    home = PREFECT_HOME.value()
    try:
        home.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=home).close()
    except OSError as error:
        raise ValueError(
            f"Prefect cannot write {home}: {error.strerror}; set PREFECT_HOME to another folder"
        ) from None


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
