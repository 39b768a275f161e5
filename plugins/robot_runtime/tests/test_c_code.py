"""Policies as C code act as the product does."""

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gaitforge.learners.checkpoint import load_policy
from gaitforge.learners.control.control import LearnedPolicy
from gaitforge.learners.models.base import BoundedNetwork
from gaitforge.learners.models.bot import MASKINGS
from gaitforge.learners.models.registry import PRESETS, build_network, preset
from gaitforge.learners.policy_network import Normaliser, PolicyNetwork
from gaitforge.learners.tokens import BODY_SIGN, Condition, TokenLayout
from gaitforge.plugins.robot_runtime.tests.c_builds import (
    SANITIZED,
    STRICT,
    build_rows,
    build_weights,
    c_files,
    has_c,
    learned_actions,
    needs,
    relative_error,
    run_rows,
    seen,
)
from tests.learners.control.exporting import FACTS
from tests.learners.making import CONTEXT, KIND_SETTINGS, NETWORKS, make_policy

SPECTRAL = {"history_kind": "spectral", "n_modes": 2}
STEPS = 4 * CONTEXT + 5
LIMIT = FACTS.action_limit


def assert_acts_as_the_product(
    policy: PolicyNetwork,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    reset_every: int = 0,
    facts: Any = FACTS,
    steps: int = STEPS,
    sanitized: bool = False,
) -> None:
    """Strictly built: known answers, and an episode beside `LearnedPolicy`."""
    needs("cc")
    limit = float("inf") if facts is None else LIMIT
    contents = c_files(policy, monkeypatch, facts)
    program = build_rows(contents, folder, (*STRICT, *(SANITIZED if sanitized else ("-O0",))))
    observations, rewards = seen(policy, steps)
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
    chosen = KIND_SETTINGS[kind] | settings
    return uneven(make_policy(kind, tokens, 7.0, return_zero=-2.0, settings=chosen))


def uneven(policy: PolicyNetwork) -> PolicyNetwork:
    """The policy with other weights, also where they start at 0 or 1, and bounds that are met."""
    with torch.no_grad():
        generator = torch.Generator().manual_seed(1)
        for parameter in policy.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))
    policy.obs_normaliser.bounded(np.full(policy.layout.obs_dim, 1.5))
    return policy.eval()


def policy_with_everything(network: str = "history-mlp") -> PolicyNetwork:
    """A body with signs, a kept last action, a filter, tanh, and three numbers of a condition."""
    stored = {"joint_pos": (0, 3), "height": (3, 5)}
    body = {BODY_SIGN: (0, 3), "mass": (3, 4)}
    condition = Condition(("return_to_go", "share"), hidden=0.2, scale=0.5)
    layout = TokenLayout.of_data("return", stored, 3, body, condition.width)
    chosen = preset(network, KIND_SETTINGS[network])
    torch.manual_seed(0)
    ramp = np.linspace(0.5, 2.0, layout.obs_dim)
    policy = PolicyNetwork(
        BoundedNetwork(build_network(chosen, layout, 3)),
        layout,
        Normaliser(ramp - 1.0, ramp),
        Normaliser(ramp[:3], ramp[:3]),
        7.0,
        return_zero=-2.0,
        condition=condition,
    )
    policy.drive(np.array([1.0, -1.0, -1.0, 0.7], np.float32))
    return uneven(policy).filtered(0.6)


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


QUICK_MASKS = ("soft", "mix")


@pytest.mark.parametrize(
    "masking",
    [pytest.param(m, marks=[] if m in QUICK_MASKS else pytest.mark.slow) for m in MASKINGS],
)
def test_every_mask_of_the_body_transformer_acts_as_the_product(
    masking: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = small("bot", masking=masking, history=2, positional_embedding=masking == "mix")
    assert_acts_as_the_product(policy, tmp_path, monkeypatch)


@pytest.mark.parametrize("kind", ["bot", "history-mlp"])
def test_modes_of_the_past_are_the_products(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_acts_as_the_product(small(kind, **SPECTRAL), tmp_path, monkeypatch)


def test_all_that_surrounds_a_network_is_as_in_the_product(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = policy_with_everything()
    assert_acts_as_the_product(policy, tmp_path, monkeypatch, 7, None, sanitized=True)


# Longer, and at other sizes.
@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in NETWORKS if has_c(small(kind, "return"))])
def test_a_thousand_steps_stay_beside_the_product(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = small(kind, "return")
    assert_acts_as_the_product(policy, tmp_path, monkeypatch, steps=1_000, sanitized=True)


def _sizes(kind: str, draw: st.DrawFn) -> dict[str, Any]:
    """Settings of a network of any small size."""
    layers = draw(st.integers(1, 3))
    width = draw(st.integers(1, 20))
    steps = draw(st.integers(1, 9))
    if kind == "fcnet":
        modes = draw(st.integers(1, steps // 2 + 1))
        sizes = {"hidden_dim": width, "decoder_dim": draw(st.integers(1, 40)), "n_modes": modes}
        return {**sizes, "n_layers": layers, "context_len": steps}
    if kind in ("transformer", "dt"):
        heads = draw(st.integers(1, 3))
        sizes = {"hidden_dim": 2 * heads * width, "n_heads": heads, "n_layers": layers}
        return {**sizes, "context_len": steps}
    memory: dict[str, Any] = {"history_kind": draw(st.sampled_from(["stacked", "spectral"]))}
    memory["n_modes"] = draw(st.integers(1, (steps + 1) // 2))
    if kind == "history-mlp":
        return {"hidden_dim": width, "n_layers": layers, "context_len": steps, **memory}
    memory["history"] = steps
    if kind == "body-mlp":
        return {"embed_dim": width, "feedforward_dim": draw(st.integers(1, 40)), **memory}
    heads = draw(st.integers(1, 3))
    sizes = {"embed_dim": heads * width, "n_heads": heads, "n_layers": layers}
    masking = draw(st.sampled_from(MASKINGS))
    return {**sizes, **memory, "feedforward_dim": draw(st.integers(1, 40)), "masking": masking}


@st.composite
def sized_policies(draw: st.DrawFn) -> PolicyNetwork:
    """Policies of any kind and size that C holds."""
    kind = draw(st.sampled_from(["fcnet", "transformer", "dt", "history-mlp", "body-mlp", "bot"]))
    return small(kind, "return", **_sizes(kind, draw))


@pytest.mark.slow
@given(sized_policies())
@settings(max_examples=12, deadline=None)
def test_networks_of_any_size_act_as_the_product(policy: PolicyNetwork) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        assert_acts_as_the_product(policy, Path(folder), patch, sanitized=True)


# The same bits from every compiler, processor and level of optimisation.
@dataclass(frozen=True)
class Build:
    """A compiler, its words, what runs its program, and the most steps that this does in time."""

    command: str
    flags: tuple[str, ...]
    runner: tuple[str, ...] = ()
    most_steps: int = 1_000


GNU = ("-std=gnu99", *STRICT[1:])
"""Strict, and with extensions, where compilers fuse products unless they are told not to."""
REFERENCE = Build("cc", (*STRICT, "-O2"))
BUILDS = {
    "gcc -O3 native": Build("cc", (*GNU, "-O3", "-march=native")),
    "gcc -O2, SSE2": Build("cc", (*STRICT, "-O2", "-DPOLICY_NO_AVX")),
    "gcc -Os": Build("cc", (*STRICT, "-Os")),
    "gcc -O0": Build("cc", (*STRICT, "-O0"), most_steps=200),
    "clang -O2": Build("clang", (*STRICT, "-O2")),
    "clang -O3 native": Build("clang", (*GNU, "-O3", "-march=native")),
    "aarch64": Build("aarch64-linux-gnu-gcc", (*GNU, "-O2", "-static"), ("qemu-aarch64",), 200),
}
SMALL: dict[str, Callable[[], PolicyNetwork]] = {
    "fcnet": lambda: small("fcnet", "return"),
    "bot": lambda: small("bot", masking="soft", **SPECTRAL),
    "dt": lambda: small("dt", "return"),
    "everything": policy_with_everything,
}
LARGE: dict[str, Callable[[], PolicyNetwork]] = {
    "fcnet-aliengo": lambda: load_policy("fcnet-aliengo"),
    "bot-aliengo": lambda: load_policy("bot-aliengo"),
    "mlp-legged": lambda: uneven(make_policy("mlp-legged", settings={"n_layers": 3})),
    "transformer": lambda: uneven(make_policy("transformer", settings={"n_layers": 4})),
}
"""Two policies that ship, and two of their presets' sizes."""


class Reference(NamedTuple):
    """A policy, its C files, and the actions (T, A) of the reference build.

    Attributes:
        weights: compiler -> the weights that it has compiled, of a large policy.
        folder: where these are.
    """

    policy: PolicyNetwork
    contents: Mapping[str, bytes]
    actions: np.ndarray
    weights: dict[str, Path]
    folder: Path

    def weights_of(self, build: Build) -> Path | None:
        """Those of a large policy for the build's processor; a small one's it compiles itself."""
        if not self.weights:
            return None
        command = build.command if build.runner else REFERENCE.command
        if command not in self.weights:
            self.weights[command] = build_weights(self.contents, self.folder, command)
        return self.weights[command]


def actions_of(
    build: Build,
    contents: Mapping[str, bytes],
    policy: PolicyNetwork,
    folder: Path,
    steps: int,
    weights: Path | None = None,
) -> np.ndarray:
    """(T, A) actions of a build that gives its known answers."""
    program = build_rows(contents, folder, build.flags, build.command, weights)
    observations, rewards = seen(policy, steps)
    words = (program, observations, rewards, 0.8, 0, build.runner, policy.act_dim)
    ran = run_rows(*words)
    assert (ran.check, ran.codes.any()) == (0, False)
    return ran.actions


@pytest.fixture(scope="module", params=[*SMALL, *LARGE])
def reference(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Reference:
    needs("cc")
    policy = (SMALL | LARGE)[request.param]()
    steps = 1_000 if request.param in LARGE else 200
    with pytest.MonkeyPatch.context() as patch:
        contents = c_files(policy, patch, FACTS if policy.act_dim == 12 else None)
    folder = tmp_path_factory.mktemp("reference")
    weights: dict[str, Path] = {}
    if request.param in LARGE:
        weights[REFERENCE.command] = build_weights(contents, folder, REFERENCE.command)
    compiled = weights.get(REFERENCE.command)
    actions = actions_of(REFERENCE, contents, policy, folder, steps, compiled)
    return Reference(policy, contents, actions, weights, folder)


@pytest.mark.slow
@pytest.mark.parametrize("name", BUILDS)
def test_every_build_gives_the_same_bits(name: str, reference: Reference, tmp_path: Path) -> None:
    build = BUILDS[name]
    needs(build.command, *build.runner)
    policy, contents, expected, _, _ = reference
    steps = min(len(expected), build.most_steps)
    weights = reference.weights_of(build)
    actions = actions_of(build, contents, policy, tmp_path, steps, weights)
    np.testing.assert_array_equal(actions, expected[:steps], strict=True)
    assert np.abs(np.diff(actions, axis=0)).max() > 1e-3, "the actions move"
