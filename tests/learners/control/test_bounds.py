"""Bounded inputs, of every model and layout: all ways to act agree, whatever a sensor says."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from gaitforge.learners.control.control import LearnedPolicy, compiled_step
from gaitforge.learners.control.step_modules import PolicyStep
from gaitforge.learners.export.export import onnx_step, to_onnx, trace
from gaitforge.learners.policy_network import PolicyNetwork
from gaitforge.learners.tokens import BODY_SIGN, TokenLayout
from tests.learners.making import (
    CONTEXT,
    KIND_SETTINGS,
    KINDS,
    OBS_SLICES,
    RETURN_KINDS,
    Seen,
    make_policy,
)

BOUNDS = np.linspace(10, 50, 70)
TARGET = 0.8
_FIRST = {name: place for name, place in OBS_SLICES.items() if place[1] <= 42}
LAYOUTS = {
    "obs": TokenLayout("obs", OBS_SLICES),
    "return": TokenLayout("return", OBS_SLICES),
    "kept last action": TokenLayout(
        "return", {**_FIRST, "command": (42, 58), "last_action": (58, 70)}, keeps_last_action=True
    ),
    "bodies": TokenLayout(
        "return",
        {**_FIRST, "last_action": (42, 54), BODY_SIGN: (54, 66), "body_trunk": (66, 70)},
        body_fields=(BODY_SIGN, "body_trunk"),
        signed_fields=("joint_vel", "sin_joint_pos", "last_action", BODY_SIGN),
    ),
}
WHOLE = ("bot",)
"""Kinds that are tried with every layout, which all share; of the others each has one, in turn."""


def _cases() -> Iterator[tuple[str, str]]:
    for number, kind in enumerate(KINDS):
        allowed = [
            name
            for name, layout in LAYOUTS.items()
            if layout.kind == "return" or kind not in RETURN_KINDS
        ]
        chosen = allowed if kind in WHOLE else [allowed[number % len(allowed)]]
        yield from ((kind, name) for name in chosen)


CASES = list(_cases())


def bounded(kind: str, layout: TokenLayout) -> PolicyNetwork:
    policy = make_policy(kind, layout=layout, settings=KIND_SETTINGS[kind], return_scale=7.0).eval()
    policy.obs_normaliser.bounded(BOUNDS)
    if layout.body_fields:
        policy.drive(np.array([*[1.0, -1.0] * 6, 0.3, -0.2, 1e20, 0.0], np.float32))
    return policy


def awkward(width: int) -> Iterator[np.ndarray]:
    """(1, width) observations of usual size, also of all sizes up to 1e30."""
    rng = np.random.default_rng(5)
    for t in range(2 * CONTEXT + 3):
        obs = rng.normal(size=(1, width))
        if t >= 2 and t % 5:
            obs *= 10.0 ** rng.uniform(-3, 30, size=(1, width))
        yield obs.clip(-1e30, 1e30).astype(np.float32)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "name"), CASES)
def test_every_way_to_act_agrees_on_inputs_of_any_size(kind: str, name: str) -> None:
    layout = LAYOUTS[name]
    policy = bounded(kind, layout)
    condition = None if layout.kind == "obs" else torch.full((1, 1), TARGET)
    module, compiled = PolicyStep(policy, 1), compiled_step(policy, 1)
    run = onnx_step(to_onnx(trace(module), module, {}), module)
    targets = [np.full(1, policy.return_at(TARGET), np.float32)] * len(module.targets)
    learned = LearnedPolicy(policy, 1, return_target=TARGET)
    exported_state = [each.numpy() for each in module.initial_state()]
    state, window, last = policy.init_state(1), list[torch.Tensor](), torch.zeros(1, 12)
    for stored in awkward(layout.stored_dim):
        obs = policy.observation(
            torch.from_numpy(stored), last if layout.keeps_last_action else None
        )
        signs = np.append(obs.numpy(), [[1.0]], axis=1)[:, layout.sign_places]
        normalised = policy.obs_normaliser.normalise(obs * torch.from_numpy(signs).float())
        assert (normalised.abs().numpy() <= BOUNDS.astype(np.float32)).all()
        window.append(obs)
        with torch.inference_mode():
            action, state = policy.step(obs, state, condition)
            over_time = None if condition is None else condition.expand(len(window), 1)[None]
            forward = policy(torch.stack(window, dim=1), over_time)[:, -1]
        wanted = action.numpy()
        assert np.isfinite(wanted).all()
        close: dict[str, Any] = {"rtol": 2e-3, "atol": 2e-3}
        np.testing.assert_allclose(forward, wanted, **close)
        np.testing.assert_allclose(learned.act(Seen(stored, np.zeros(1))), wanted, **close)
        if compiled is not None:
            asked = None if condition is None else condition.numpy()
            np.testing.assert_allclose(compiled.step(obs.numpy(), asked), wanted, **close)
        exported, *exported_state = run([stored, *targets, *exported_state])
        np.testing.assert_allclose(exported, wanted, **close)
        last = action
