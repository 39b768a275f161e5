"""Small policies of every kind, exported once, and facts about the robot they are for."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gaitforge.collectors.robots.robot import load_robot
from gaitforge.flows.stages.export import robot_facts
from gaitforge.learners.checkpoint import policy_card
from gaitforge.learners.deploy.export import ExportOptions, ExportResult, export_policy
from gaitforge.learners.models.registry import ModelSpec, build_network, config_class
from gaitforge.learners.policy.normalisation import Normaliser
from gaitforge.learners.policy.policy_network import PolicyNetwork
from gaitforge.learners.policy.tokens import TokenLayout
from tests.learners.making import CONTEXT, KIND_SETTINGS, OBS_SLICES

FACTS = robot_facts(load_robot())
RETURN_SCALE = 7.0
LONG = 2 * CONTEXT + 5


@cache
def small_policy(kind: str, tokens: str = "obs") -> tuple[PolicyNetwork, dict[str, Any]]:
    """An untrained policy with uneven normalisers, and its checkpoint's card."""
    spec = ModelSpec(kind, config_class(kind)(**KIND_SETTINGS[kind]))
    layout = TokenLayout("return" if kind == "dt" else tokens, OBS_SLICES)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = build_network(spec, layout, act_dim=12)
    ramp = np.linspace(0.5, 2.0, 70)
    policy = PolicyNetwork(
        network,
        layout,
        Normaliser(ramp - 1.0, ramp),
        Normaliser(ramp[:12], ramp[:12]),
        RETURN_SCALE,
        return_zero=-2.0,
    ).eval()
    return policy, policy_card(policy, spec) | {"parameters": 12345}


def export_small(
    dst: Path, kind: str = "fcnet", tokens: str = "obs", options: ExportOptions | None = None
) -> ExportResult:
    """Export a small policy."""
    policy, card = small_policy(kind, tokens)
    return export_policy(policy, card, FACTS, dst, options, {"run": "small", "dataset_hash": "ab"})
