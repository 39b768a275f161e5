"""A Prefect server for a `with` block, and messages to a web hook.

The server is the configured one, or one that we start.

Messages tell when runs fail, are late, or collect nothing. They are Prefect's automations.
"""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit
from uuid import UUID

import httpx
from prefect.automations import AutomationCore
from prefect.blocks.notifications import CustomWebhookNotificationBlock
from prefect.client.orchestration import get_client
from prefect.events.actions import SendNotification
from prefect.events.schemas.automations import EventTrigger, Posture
from prefect.events.worker import EventsWorker
from prefect.settings import (
    PREFECT_API_AUTH_STRING,
    PREFECT_API_URL,
    PREFECT_HOME,
    PREFECT_SERVER_API_AUTH_STRING,
    temporary_settings,
)

from gaitforge.common.errors import names_allowed
from gaitforge.common.redaction import redacted
from gaitforge.flows.runners.prefect import (
    bypass_proxies,
    check_prefect_home,
    first_start,
    is_loopback,
)
from gaitforge.flows.runners.prefect_stages import COLLECTED

# The server: the configured one, or one that we start.
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
        try:
            yield url
        finally:
            # Prefect's workers of events and logs keep the server that they had first. Without
            # this, those of a later server in this process would wait for one that is gone.
            EventsWorker.drain_all(timeout=STOP_LIMIT_S, at_exit=False)


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
            env=_ENVIRONMENT | os.environ | {"PREFECT_HOME": str(PREFECT_HOME.value())},
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


# Messages to a web hook.
NAME = "gaitforge"
HOOK = "gaitforge-notifications"

_RUN = "prefect.flow-run."
_EVENTS = {
    "failed": {f"{_RUN}Failed", f"{_RUN}Crashed", f"{_RUN}TimedOut"},
    "late": {f"{_RUN}Late"},
}
NOTHING_COLLECTED = "nothing-collected"
REASONS = (*_EVENTS, NOTHING_COLLECTED)
_RUN_BODY = """Flow run {{ flow_run.name }} of {{ flow.name }} is {{ flow_run.state.name }}.
{{ flow_run.state.message }}
{{ flow_run|ui_url }}"""
_NOTHING_BODY = "No part was collected in the last {hours} hours by any flow."


@dataclass(frozen=True)
class NotifyPlan:
    """Reasons to notify for, and the address.

    Attributes:
        url: the web hook; it gets {"text": MESSAGE} by POST, as Slack and Mattermost take it.
        reasons: some of `REASONS`.
        hours: how long no part was collected when "nothing-collected" is reported.
    """

    url: str
    reasons: tuple[str, ...] = REASONS
    hours: int = 26

    def __post_init__(self) -> None:
        if urlsplit(self.url).scheme not in ("http", "https") or not urlsplit(self.url).netloc:
            raise ValueError("--url needs the http or https address of a web hook")
        wrong = [reason for reason in self.reasons or ("",) if reason not in REASONS]
        if wrong:
            raise ValueError(f"unknown reason '{wrong[0]}'; {names_allowed(wrong[0], REASONS)}")


def set_up_notifications(plan: NotifyPlan | None) -> list[str]:
    """Replace all automations of this command by one per reason; returns their names.

    They are those of PREFECT_API_URL's server, or else of the one that `gaitforge serve` starts.

    Args:
        plan: None to remove them only.

    Raises:
        ValueError: no server answers.
    """
    url = PREFECT_API_URL.value() or f"http://{LOOPBACK}:{PORT}/api"
    bypass_proxies()
    with temporary_settings({PREFECT_API_URL: url}), get_client(sync_client=True) as client:
        if client.api_healthcheck() is not None:
            raise ValueError(
                f"no Prefect server answers at {redacted(url)}; start `gaitforge serve`, or set "
                "PREFECT_API_URL"
            )
        automations = [] if plan is None else _automations(plan)
        for reason in REASONS:
            for automation in client.read_automations_by_name(f"{NAME}-{reason}"):
                client.delete_automation(automation.id)
        for automation in automations:
            client.create_automation(automation)
    return [automation.name for automation in automations]


def _automations(plan: NotifyPlan) -> list[AutomationCore]:
    """An automation per reason; makes the web hook's block."""
    settings = {"name": HOOK, "url": plan.url, "json_data": {"text": "{{subject}}\n{{body}}"}}
    hook = CustomWebhookNotificationBlock.model_validate(settings)
    block: Any = hook.save(HOOK, overwrite=True)
    return [_automation(reason, plan.hours, block) for reason in plan.reasons]


def _automation(reason: str, hours: int, block: UUID) -> AutomationCore:
    kind = Posture.Reactive
    events = _EVENTS.get(reason, {COLLECTED})
    within = timedelta()
    body = _RUN_BODY
    subject = f"gaitforge: a run is {reason}"
    if reason not in _EVENTS:
        kind = Posture.Proactive
        within = timedelta(hours=hours)
        body = _NOTHING_BODY.format(hours=hours)
        subject = "gaitforge: nothing was collected"
    trigger = EventTrigger(expect=events, posture=kind, threshold=1, within=within)
    action = SendNotification(block_document_id=block, subject=subject, body=body)
    return AutomationCore(name=f"{NAME}-{reason}", trigger=trigger, actions=[action])
