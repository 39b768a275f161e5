"""Messages to a web hook when runs fail, are late, or collect nothing: Prefect's automations."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

from prefect.automations import AutomationCore
from prefect.blocks.notifications import CustomWebhookNotificationBlock
from prefect.client.orchestration import get_client
from prefect.events.actions import SendNotification
from prefect.events.schemas.automations import EventTrigger, Posture
from prefect.settings import PREFECT_API_URL, temporary_settings

from gaitforge.flows.records.redaction import redacted
from gaitforge.flows.runners.prefect_access import bypass_proxies
from gaitforge.flows.runners.prefect_stages import COLLECTED
from gaitforge.pipeline.serve.prefect_server import LOOPBACK, PORT

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
        wrong = [reason for reason in self.reasons if reason not in REASONS]
        if wrong or not self.reasons:
            raise ValueError(
                f"unknown reason '{''.join(wrong[:1])}'; allowed: {', '.join(REASONS)}"
            )


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
