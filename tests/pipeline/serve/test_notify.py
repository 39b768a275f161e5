"""Notifications: a real server, a real automation, and a web hook on loopback that hears of it."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.logging.handlers import APILogHandler

from gaitforge.pipeline.cli.main import main
from gaitforge.pipeline.serve.prefect_server import REASONS, prefect_api
from tests.flows.processes import soon

HEARD: list[str] = []


class _Hook(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        length = int(self.headers["Content-Length"])
        HEARD.append(json.loads(self.rfile.read(length))["text"])
        self.send_response(204)
        self.end_headers()


@pytest.fixture
def hook() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Hook)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/robots"
    server.shutdown()


@pytest.mark.slow
def test_a_failed_run_is_told_and_a_second_call_replaces_the_first(hook: str) -> None:
    @flow(name="breaks")
    def breaks() -> None:
        raise ValueError("the expert is lost")

    with prefect_api(port=0):
        for _ in range(2):
            assert main(["notify", "--url", hook]) == 0
        with get_client(sync_client=True) as client:
            names = sorted(each.name for each in client.read_automations())
            assert names == [f"gaitforge-{each}" for each in sorted(REASONS)]
        with pytest.raises(ValueError, match="expert is lost"):
            breaks()
        [told] = soon(lambda: HEARD)
        assert "gaitforge: a run is failed" in told
        assert "of breaks is Failed" in told
        assert "the expert is lost" in told
        assert main(["notify", "--remove"]) == 0
        with get_client(sync_client=True) as client:
            assert list(client.read_automations()) == []
        APILogHandler().flush()
