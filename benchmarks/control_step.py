"""Time of one control step of one robot on one thread, by context length.

The setting of the FCNet paper's Figure 6: random weights and observations, 500 steps to warm up,
several seeds. A step goes from a NumPy observation to an action and includes both normalisers.
Candidates take turns in short blocks, which spreads other load over all of them.
"""

import math
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.harness import one_thread, seconds_of, untrained_policy
from gaitforge.collectors.policies import StoredObservation
from gaitforge.collectors.robots.robot import load_robot
from gaitforge.flows.progress import Advance
from gaitforge.flows.stages.export import robot_facts
from gaitforge.learners.checkpoint import policy_card
from gaitforge.learners.deploy.compiled_step import compiled_step
from gaitforge.learners.deploy.control import TorchStep
from gaitforge.learners.deploy.export import ExportOptions, export_policy
from gaitforge.learners.deploy.export_formats import onnx_packages
from gaitforge.learners.deploy.onnx_policy import OnnxPolicy
from gaitforge.learners.models.registry import PRESETS, ModelSpec, preset
from gaitforge.learners.models.sizes import parameter_count
from gaitforge.learners.models.spaces import SPACES, Space

FCNET = "fcnet-legged"
COMPILED, TORCH, ONNX = "compiled", "torch", "onnx"
COMPILED_KINDS = ("fcnet", "transformer", "dt", "bot", "body-mlp", "history-mlp", "mlp")
LEGGED = "legged"
OTHERS = ("dt-legged", "history-mlp-legged", "mlp-legged", "bot", "flow-1", "flow", "flow-4")
DEMO = PRESETS["fcnet"].values  # what the demo's FCNet changes in the legged one
_REENTRY_STEPS = 5  # untimed at the start of a block: they refill the caches with the weights

Key = tuple[str, str]
ControlStep = Callable[[np.ndarray], Any]
"""An observation (Do,) float32 -> an action."""


@dataclass(frozen=True)
class ControlStepConfig:
    """Sizes of the measurement.

    Attributes:
        context_lens: of FCNet and the Transformer, beside their own.
        others: presets that are measured at their own size only.
        warm_up: untimed steps per candidate and seed.
        blocks, block_steps: turns per seed, and timed steps per turn.
        export_all: measure every network in ONNX Runtime, FCNet at all sizes; else FCNet's legged
            size alone.
    """

    context_lens: tuple[int, ...] = (128, 256, 512, 1024)
    others: tuple[str, ...] = OTHERS
    seeds: int = 3
    warm_up: int = 500
    blocks: int = 20
    block_steps: int = 50
    export_all: bool = True

    @property
    def settings(self) -> tuple[dict[str, int], ...]:
        """FCNet's legged size as {}, then what each other size changes in it."""
        return ({}, *({"context_len": length} for length in self.context_lens))


@dataclass(frozen=True)
class Candidate:
    """A network in a runtime, at a setting of FCNet's sizes (what is changed in the legged one)."""

    model: str
    setting: Mapping[str, Any]
    spec: ModelSpec
    space: Space
    runtime: str = TORCH

    @property
    def key(self) -> Key:
        """Model with runtime, and setting, as text."""
        return f"{self.model}-{self.runtime}", setting_name(self.setting)


def setting_name(setting: Mapping[str, Any]) -> str:
    """A setting as text: what it changes, or "legged"."""
    return ",".join(f"{name}={value}" for name, value in setting.items()) or LEGGED


def paper_modes(context_len: int) -> int:
    """Modes that the FCNet paper's Section 4.3 keeps: min(2.5 ln n, n // 2 + 1)."""
    return max(1, min(int(2.5 * math.log(context_len)), context_len // 2 + 1))


def candidates(config: ControlStepConfig) -> list[Candidate]:
    """All that is measured: each network in each runtime; baselines with FCNet's parameters.

    FCNet keeps its 10 modes at every context length, and with them its number of parameters; at
    the longer ones the compiled one is also measured with the paper's number of modes.
    """
    space, found = SPACES[LEGGED], []
    elsewhere = (ONNX,) if config.export_all else ()
    for setting in (*config.settings, DEMO):
        spec = preset(FCNET, setting)
        runtimes = (COMPILED, TORCH, *(elsewhere if setting else (ONNX,)))
        found += [Candidate("fcnet", setting, spec, space, each) for each in runtimes]
    for setting in config.settings:
        for kind in ("transformer",) if setting else ("transformer", "retnet"):
            spec = preset(f"{kind}-legged", setting)
            runtimes = (*_compiled(kind), TORCH, *(() if setting else elsewhere))
            found += [Candidate(kind, setting, spec, space, each) for each in runtimes]
        if setting:
            widened = {**setting, "n_modes": paper_modes(setting["context_len"])}
            found.append(Candidate("fcnet", widened, preset(FCNET, widened), space, COMPILED))
    for name in config.others:
        spec, space = preset(name), SPACES[PRESETS[name].space]
        runtimes = (*_compiled(PRESETS[name].kind), TORCH, *elsewhere)
        found += [Candidate(name, {}, spec, space, each) for each in runtimes]
    return found


def _compiled(kind: str) -> tuple[str, ...]:
    return (COMPILED,) if kind in COMPILED_KINDS else ()


def by_runtime(figures: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A row for each network at its own size: parameters, and median µs in each runtime."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for key, settings in figures.items():
        model, runtime = key.rsplit("-", 1)
        for setting in (LEGGED, setting_name(DEMO)):
            each = settings.get(setting)
            if each is not None:
                row = {"model": model, "setting": setting, "parameters": each["parameters"]}
                empty = dict.fromkeys((TORCH, ONNX, COMPILED))
                rows.setdefault((model, setting), row | empty)[runtime] = each["median_us"]
    return list(rows.values())


def turns(config: ControlStepConfig) -> int:
    """How often `control_step_us` reports progress."""
    return config.seeds * config.blocks + sum(each.runtime == ONNX for each in candidates(config))


def control_step_us(
    config: ControlStepConfig, advance: Advance
) -> tuple[dict[str, dict[str, object]], list[str]]:
    """Model -> setting -> times of one control step in µs; and a note for what was left out."""
    chosen, notes = candidates(config), []
    try:
        onnx_packages()
    except ValueError as error:
        notes.append(f"ONNX Runtime left out: {error}")
        chosen = [each for each in chosen if each.runtime != ONNX]
    obs_dim = SPACES[LEGGED].layout.obs_dim
    with tempfile.TemporaryDirectory() as folder, one_thread():
        exports = _exports(chosen, Path(folder), advance)
        samples: dict[Key, list[float]] = {each.key: [] for each in chosen}
        for seed in range(config.seeds):
            rng = np.random.default_rng(seed)
            observations = rng.standard_normal((config.block_steps, obs_dim), dtype=np.float32)
            steps = {each.key: _control_step(each, seed, exports) for each in chosen}
            for step in steps.values():
                for obs in islice(cycle(observations), config.warm_up):
                    step(obs)
            for _ in range(config.blocks):
                for key, step in steps.items():
                    samples[key] += _block(step, observations)
                advance(1, "control step")
    records: dict[str, dict[str, object]] = {}
    for each in chosen:
        model, setting = each.key
        records.setdefault(model, {})[setting] = _record(each, samples[each.key])
    return records, notes


def _record(candidate: Candidate, samples: list[float]) -> dict[str, object]:
    space = candidate.space
    return {
        "median_us": 1e6 * float(np.median(samples)),
        "p99_us": 1e6 * float(np.percentile(samples, 99)),
        "parameters": parameter_count(candidate.spec, space.layout, space.act_dim),
    }


def _exports(chosen: list[Candidate], folder: Path, advance: Advance) -> dict[Key, Path]:
    """The exported folders, with the weights of the first seed for all."""
    facts, options = robot_facts(load_robot()), ExportOptions(formats=("onnx",))
    paths = {}
    for each in (each for each in chosen if each.runtime == ONNX):
        paths[each.key] = folder / "-".join(each.key)
        with torch.inference_mode(False):
            policy = untrained_policy(each.spec, each.space).eval()
            export_policy(policy, policy_card(policy, each.spec), facts, paths[each.key], options)
        advance(1, f"export, {'-'.join(each.key)}")
    return paths


def _control_step(candidate: Candidate, seed: int, exports: Mapping[Key, Path]) -> ControlStep:
    if candidate.runtime == ONNX:
        exported = OnnxPolicy(exports[candidate.key])
        return lambda obs: exported.act(StoredObservation(obs[None], obs[:1]))
    policy = untrained_policy(candidate.spec, candidate.space, seed).eval()
    step = compiled_step(policy, 1) if candidate.runtime == COMPILED else TorchStep(policy, 1)
    assert step is not None, "chosen by its kind"
    target = np.ones((1, 1), np.float32) if policy.conditioned else None
    return lambda obs: step.step(obs[None], target)


def _block(step: ControlStep, observations: np.ndarray) -> list[float]:
    for obs in observations[:_REENTRY_STEPS]:
        step(obs)
    return [seconds_of(partial(step, obs)) for obs in observations]
