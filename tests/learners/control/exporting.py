"""Small policies of every kind, exported once, and facts about the robot they are for."""

from functools import cache
from pathlib import Path
from typing import Any

from gaitforge.collectors.robots.robot import load_robot
from gaitforge.flows.stages.transfer import robot_facts
from gaitforge.learners.checkpoint import policy_card
from gaitforge.learners.export.export import ExportResult, PolicyExportOptions, export_policy
from gaitforge.learners.models.registry import preset
from gaitforge.learners.policy_network import PolicyNetwork
from tests.learners.making import CONTEXT, KIND_SETTINGS, RETURN_KINDS, make_policy

FACTS = robot_facts(load_robot())
RETURN_SCALE = 7.0
LONG = 2 * CONTEXT + 5


@cache
def small_policy(kind: str, tokens: str = "obs") -> tuple[PolicyNetwork, dict[str, Any]]:
    """An untrained policy with uneven normalisers, and its checkpoint's card."""
    tokens, settings = "return" if kind in RETURN_KINDS else tokens, KIND_SETTINGS[kind]
    policy = make_policy(kind, tokens, RETURN_SCALE, return_zero=-2.0, settings=settings).eval()
    return policy, policy_card(policy, preset(kind, settings)) | {"parameters": 12345}


def export_small(
    dst: Path, kind: str = "fcnet", tokens: str = "obs", options: PolicyExportOptions | None = None
) -> ExportResult:
    """Export a small policy."""
    policy, card = small_policy(kind, tokens)
    return export_policy(policy, card, FACTS, dst, options, {"run": "small", "dataset_hash": "ab"})
