"""Policies as C code act as the product does, and refuse what is wrong."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gaitforge.learners.control.control import LearnedPolicy
from gaitforge.learners.models.base import BoundedNetwork
from gaitforge.learners.models.bot import MASKINGS
from gaitforge.learners.models.registry import PRESETS
from gaitforge.learners.policy_network import Normaliser, PolicyNetwork
from gaitforge.learners.tokens import BODY_SIGN, Condition, TokenLayout
from gaitforge.plugins.robot_runtime.tests.c_builds import (
    SANITIZED,
    STRICT,
    build_rows,
    c_files,
    has_c,
    learned_actions,
    needs,
    relative_error,
    run_rows,
    seen,
)
from tests.learners.control.exporting import FACTS
from tests.learners.making import CONTEXT, KIND_SETTINGS, NETWORKS, OBS_SLICES, make_policy

SPECTRAL = {"history_kind": "spectral", "n_modes": 2}
STEPS = 4 * CONTEXT + 5
LIMIT = FACTS.action_limit


def assert_acts_as_the_product(
    policy: PolicyNetwork,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    reset_every: int = 0,
    facts: Any = FACTS,
) -> None:
    """Strictly built with sanitizers: known answers, and an episode beside `LearnedPolicy`."""
    needs("cc")
    limit = float("inf") if facts is None else LIMIT
    contents = c_files(policy, monkeypatch, facts)
    program = build_rows(contents, folder, (*STRICT, *SANITIZED))
    observations, rewards = seen(policy, STEPS)
    ran = run_rows(program, observations, rewards, 0.8, reset_every, act_dim=policy.act_dim)
    assert (ran.check, ran.error <= 1e-5) == (0, True), ran.error
    assert not ran.codes.any()
    learned = LearnedPolicy(
        policy, 1, return_target=0.8, action_limit=limit, reset_every=reset_every
    )
    expected = learned_actions(learned, observations, rewards)
    assert np.abs(expected).max() > 0.01
    assert relative_error(ran.actions, expected) <= 1e-5


def small(kind: str, tokens: str = "obs", **settings: Any) -> PolicyNetwork:
    """An untrained policy of a kind, with uneven weights, normalisers and bounds."""
    policy = make_policy(
        kind, tokens, 7.0, return_zero=-2.0, settings=KIND_SETTINGS[kind] | settings
    )
    with torch.no_grad():
        generator = torch.Generator().manual_seed(1)
        for parameter in policy.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))
    policy.obs_normaliser.bounded(np.full(policy.layout.obs_dim, 1.5))
    return policy.eval()


@pytest.mark.parametrize("kind", NETWORKS)
def test_every_network_with_a_compiled_step_acts_as_the_product(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = small(kind, "return" if kind != "mlp" else "obs")
    if has_c(policy):
        assert_acts_as_the_product(policy, tmp_path, monkeypatch)
        return
    with pytest.raises(ValueError, match=f"{PRESETS[kind].kind} has no compiled control step"):
        c_files(policy, monkeypatch, kind=PRESETS[kind].kind)
