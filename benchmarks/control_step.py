"""Time of one control step of one robot on one thread, by context length.

The setting of the FCNet paper's Figure 6: random weights and observations, 500 steps to warm up,
several seeds. A step goes from a NumPy observation to an action and includes both normalisers.
Candidates take turns in short blocks, which spreads other load over all of them.
"""

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np

from gaitforge.flows.measures.control_steps import COMPILED, ONNX, TORCH, StepOfOne, step_in, turn_s
from gaitforge.flows.measures.timing import torch_threads, untrained_policy
from gaitforge.flows.progress import Advance
from gaitforge.learners.deploy.export_formats import onnx_packages
from gaitforge.learners.models.fcnet.spectral_basis import paper_modes
from gaitforge.learners.models.registry import PRESETS, ModelSpec, preset
from gaitforge.learners.models.sizes import parameter_count
from gaitforge.learners.models.spaces import SPACES, Space

FCNET = "fcnet-legged"
COMPILED_KINDS = ("fcnet", "transformer", "dt", "bot", "body-mlp", "history-mlp", "mlp")
LEGGED = "legged"
OTHERS = ("dt-legged", "history-mlp-legged", "mlp-legged", "bot", "flow-1", "flow", "flow-4")
DEMO = PRESETS["fcnet"].values  # what the demo's FCNet changes in the legged one

Key = tuple[str, str]


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
    with tempfile.TemporaryDirectory() as folder, torch_threads(1):
        exported: dict[Key, StepOfOne] = {}
        for each in (each for each in chosen if each.runtime == ONNX):
            exported[each.key] = _control_step(each, 0, Path(folder, "-".join(each.key)))
            advance(1, f"export, {'-'.join(each.key)}")
        samples: dict[Key, list[float]] = {each.key: [] for each in chosen}
        for seed in range(config.seeds):
            rng = np.random.default_rng(seed)
            observations = rng.standard_normal((config.block_steps, obs_dim), dtype=np.float32)
            steps = {
                each.key: exported.get(each.key) or _control_step(each, seed, Path(folder))
                for each in chosen
            }
            for step in steps.values():
                for obs in islice(cycle(observations), config.warm_up):
                    step(obs)
            for _ in range(config.blocks):
                for key, step in steps.items():
                    samples[key] += turn_s(step, observations)
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


def _control_step(candidate: Candidate, seed: int, folder: Path) -> StepOfOne:
    policy = untrained_policy(candidate.spec, candidate.space, seed).eval()
    step = step_in(candidate.runtime, policy, candidate.spec, folder)
    assert step is not None, "chosen by its kind"
    return step
