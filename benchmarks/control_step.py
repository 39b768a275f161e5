"""Time of one control step of one robot on one thread, by context length.

The setting of the FCNet paper's Figure 6: random weights and observations, 500 steps to warm up,
several seeds. A step goes from a NumPy observation to an action and includes both normalisers.
Candidates take turns in short blocks, which spreads other load over all of them.
"""

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from gaitforge.collectors.policy import StoredObservation
from gaitforge.collectors.robots.robot import load_robot
from gaitforge.flows.progress import Advance
from gaitforge.flows.stages.transfer import robot_facts
from gaitforge.learners.checkpoint import policy_card
from gaitforge.learners.export.export import PolicyExportOptions, export_policy, onnx_packages
from gaitforge.learners.models.bodies import SPACES, Space
from gaitforge.learners.models.fcnet import paper_modes
from gaitforge.learners.models.registry import (
    PRESETS,
    ModelSpec,
    build_network,
    count_parameters,
    preset,
)
from gaitforge.learners.training.train import torch_threads
from gaitforge.plugins.papers.measures.control_steps import (
    COMPILED,
    ONNX,
    TORCH,
    StepOfOne,
    step_in,
    turn_s,
    warmed_up,
)
from gaitforge.plugins.papers.measures.timing import in_turns, untrained_policy
from gaitforge.plugins.robot_runtime.c_code.compiling import compiler
from gaitforge.plugins.robot_runtime.c_code.loop import CPolicy

LEGGED = "legged"
FCNET = "fcnet"
TRANSFORMER = "transformer"
RETNET = "retnet"
"""Short names of the presets of FCNet's legged size."""
OTHERS = ("dt-legged", "history-mlp-legged", "mlp-legged", "bot", "flow-1", "flow", "flow-4")
C = "c"
"""The runtime of the exported C code, compiled here for this processor."""
BOT = "bot"
OTHERS_IN_C = (TRANSFORMER, "mlp-legged")
"""Measured as C code beside FCNet and BoT, at their own size."""
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
        export_all: measure every network in ONNX Runtime, FCNet at all sizes, and more networks
            as C code; else FCNet's legged size alone.
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
    """A network in a runtime, at a setting: what is changed in its preset's sizes."""

    model: str
    setting: Mapping[str, Any]
    runtime: str

    @property
    def key(self) -> Key:
        """Model with runtime, and setting, as text."""
        return f"{self.model}-{self.runtime}", setting_name(self.setting)

    @property
    def sized(self) -> tuple[ModelSpec, Space]:
        """The network's spec, and its tokens and actions."""
        short = self.model in (FCNET, TRANSFORMER, RETNET)
        name = f"{self.model}-legged" if short else self.model
        return preset(name, self.setting), SPACES[PRESETS[name].space]

    def step(self, seed: int, folder: Path) -> StepOfOne | None:
        """The control step with random weights, as `step_in`."""
        spec, space = self.sized
        policy = untrained_policy(spec, space, seed).eval()
        if self.runtime != C:
            return step_in(self.runtime, policy, spec, folder)
        facts = robot_facts(load_robot())
        export_policy(policy, policy_card(policy, spec), facts, folder, PolicyExportOptions((C,)))
        exported = CPolicy(folder)
        return lambda obs: exported.act(StoredObservation(obs[None], obs[:1]))


def setting_name(setting: Mapping[str, Any]) -> str:
    """A setting as text: what it changes, or "legged"."""
    return ",".join(f"{name}={value}" for name, value in setting.items()) or LEGGED


def candidates(config: ControlStepConfig) -> Iterator[Candidate]:
    """Measured candidates: each network in each runtime; baselines with FCNet's parameters.

    FCNet keeps its 10 modes at every context length, and with them its number of parameters; at
    the longer ones the compiled one is also measured with the paper's number of modes.
    """
    models = [(FCNET, setting) for setting in (*config.settings, DEMO)]
    models += [(TRANSFORMER, setting) for setting in config.settings]
    models += [(name, {}) for name in (RETNET, *config.others)]
    for model, setting in models:
        exported = config.export_all or (model == FCNET and not setting)
        in_onnx = exported and (model == FCNET or not setting)
        in_c = (model == FCNET and setting in ({}, DEMO)) or model == BOT
        in_c = in_c or (config.export_all and not setting and model in OTHERS_IN_C)
        for runtime in (COMPILED, TORCH, *((ONNX,) if in_onnx else ()), *((C,) if in_c else ())):
            yield Candidate(model, setting, runtime)
    for length in config.context_lens:
        widened = {"context_len": length, "n_modes": paper_modes(length)}
        yield Candidate(FCNET, widened, COMPILED)


def by_runtime(figures: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A row for each network at its own size: parameters, and median µs in each runtime."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for key, settings in figures.items():
        model, runtime = key.rsplit("-", 1)
        for setting in (LEGGED, setting_name(DEMO)):
            each = settings.get(setting)
            if each is not None:
                row = {"model": model, "setting": setting, "parameters": each["parameters"]}
                empty = dict.fromkeys((TORCH, ONNX, COMPILED, C))
                rows.setdefault((model, setting), row | empty)[runtime] = each["median_us"]
    return list(rows.values())


def turns(config: ControlStepConfig) -> int:
    """How often `control_step_us` reports progress."""
    exported = sum(each.runtime in (ONNX, C) for each in candidates(config))
    return config.seeds * (config.blocks + 1) + exported


def control_step_us(
    config: ControlStepConfig, advance: Advance
) -> tuple[dict[str, dict[str, object]], list[str]]:
    """Model -> setting -> times of one control step in µs; and a note for what was left out."""
    chosen = list(candidates(config))
    notes = []
    try:
        onnx_packages()
    except ValueError as error:
        notes.append(f"ONNX Runtime left out: {error}")
        chosen = [each for each in chosen if each.runtime != ONNX]
    if compiler() is None:
        notes.append("C left out: no compiler cc is here")
        chosen = [each for each in chosen if each.runtime != C]
    samples: dict[Key, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder, torch_threads(1):
        exported: dict[Key, StepOfOne | None] = {}
        for each in (each for each in chosen if each.runtime in (ONNX, C)):
            exported[each.key] = each.step(0, Path(folder, "-".join(each.key)))
            advance(1, f"export, {'-'.join(each.key)}")
        for seed in range(config.seeds):
            shape = config.block_steps, SPACES[LEGGED].layout.obs_dim
            seen = np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)
            steps = {e.key: exported.get(e.key) or e.step(seed, Path(folder)) for e in chosen}
            works = {
                key: partial(turn_s, warmed_up(step, seen, config.warm_up), seen)
                for key, step in steps.items()
                if step is not None
            }
            times = in_turns(works, config.blocks, lambda: advance(1, "control step"))
            for key, each in times.items():
                samples.setdefault(key, []).extend(chain.from_iterable(each))
    records: dict[str, dict[str, object]] = {}
    for each in (each for each in chosen if each.key in samples):
        (model, setting), (spec, space) = each.key, each.sized
        records.setdefault(model, {})[setting] = {
            "median_us": 1e6 * float(np.median(samples[each.key])),
            "p99_us": 1e6 * float(np.percentile(samples[each.key], 99)),
            "parameters": count_parameters(build_network(spec, space.layout, space.act_dim)),
        }
    return records, notes
