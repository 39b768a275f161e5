"""Policies as C code in the tests: written without an export's folder, built and run by rows."""

import ctypes
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gaitforge.learners.control.control import step_program
from gaitforge.learners.control.step_modules import PolicyStep
from gaitforge.learners.export.description import RobotFacts, policy_metadata
from gaitforge.learners.export.export import PolicyExport
from gaitforge.learners.policy_network import PolicyNetwork
from gaitforge.plugins.robot_runtime.c_code import writing
from gaitforge.plugins.robot_runtime.c_code.compiling import compile_c
from gaitforge.plugins.robot_runtime.c_code.policy_code import source
from tests.learners.control.exporting import FACTS

STRICT = ("-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Werror")
SANITIZED = ("-O0", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
ROWS = Path(__file__).with_name("rows.c")


def needs(*commands: str) -> None:
    """Skip the test where one of these programs is not installed."""
    packages = {
        "cc": "gcc",
        "aarch64-linux-gnu-gcc": "gcc-aarch64-linux-gnu libc6-dev-arm64-cross",
        "qemu-aarch64": "qemu-user",
    }
    for command in commands:
        if shutil.which(command) is None:
            pytest.skip(f"needs {command}: apt-get install {packages.get(command, command)}")


def c_files(
    policy: PolicyNetwork,
    monkeypatch: pytest.MonkeyPatch,
    facts: RobotFacts | None = FACTS,
    kind: str = "fcnet",
) -> Mapping[str, bytes]:
    """The files of the format c, which are not compiled here."""
    module = PolicyStep(policy)
    metadata = policy_metadata(policy, {"model": {"kind": kind}}, facts, module, {})
    monkeypatch.setattr(writing, "compiler", lambda: None)
    return writing.write_c(PolicyExport(policy, facts, module, metadata), None).files


@dataclass(frozen=True)
class Ran:
    """What a program of rows.c gives.

    Attributes:
        check, error: of policy_check.
        codes: (T,) of policy_act; actions: (T, A) float32, zeros where there is none.
    """

    check: int
    error: float
    codes: np.ndarray
    actions: np.ndarray


def build_rows(
    contents: Mapping[str, bytes],
    folder: Path,
    flags: Sequence[str],
    command: str = "cc",
    weights: Path | None = None,
) -> Path:
    """The program of rows.c for some files; weights: compiled before."""
    program = folder / "rows"
    files = {**contents, "rows.c": ROWS.read_bytes()}
    sources = "policy.c", "rows.c", str(weights or "policy_weights.c")
    compile_c(files, sources, folder, program, flags, command)
    return program


def build_weights(contents: Mapping[str, bytes], folder: Path, command: str) -> Path:
    """The weights alone, which are numbers and take most of the time to compile."""
    built = folder / f"{command}.o"
    compile_c(contents, ("policy_weights.c",), folder, built, ("-std=c99", "-c"), command)
    return built


def load_c(contents: Mapping[str, bytes], folder: Path) -> ctypes.CDLL:
    """The files as a library, with batch.c; quickly compiled."""
    built = folder / "policy.so"
    files = {**contents, "batch.c": source("batch.c").encode()}
    names = ("policy.c", "policy_weights.c", "batch.c")
    compile_c(files, names, folder, built, ("-std=c99", "-O0", "-shared", "-fPIC"))
    return ctypes.CDLL(str(built))


def run_rows(
    program: Path,
    observations: np.ndarray,
    rewards: np.ndarray,
    return_target: float = 1.0,
    reset_every: int = 0,
    runner: Sequence[str] = (),
    act_dim: int = 12,
) -> Ran:
    """The program's actions at observations (T, D), with the rewards (T,) of the steps before."""
    head = np.array([return_target, reset_every], np.float32)
    rows = np.concatenate([rewards[:, None], observations], axis=1).astype(np.float32)
    words = [*runner, str(program)]
    given = head.tobytes() + rows.tobytes()
    run = subprocess.run(words, input=given, capture_output=True, check=False, timeout=300)
    assert run.returncode == 0, run.stderr.decode()
    numbers = np.frombuffer(run.stdout, np.float32)
    results = numbers[2:].reshape(-1, 1 + act_dim)
    return Ran(int(numbers[0]), float(numbers[1]), results[:, 0].astype(int), results[:, 1:])


def relative_error(actions: np.ndarray, expected: np.ndarray) -> float:
    """The largest difference, relative to actions above 1."""
    return float((np.abs(actions - expected) / np.maximum(1.0, np.abs(expected))).max())


def has_c(policy: PolicyNetwork) -> bool:
    """Whether the policy's network can be written as C."""
    return step_program(policy, 1) is not None


def seen(policy: PolicyNetwork, steps: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Random observations (T, D) around the normaliser's mean, and rewards (T,)."""
    rng = np.random.default_rng(seed)
    width = policy.layout.stored_dim
    mean = policy.obs_normaliser.mean.numpy()[:width]
    std = policy.obs_normaliser.std.numpy()[:width]
    noise = rng.standard_normal((steps, width), dtype=np.float32)
    return mean + std * noise, rng.uniform(0, 0.1, steps).astype(np.float32)


def learned_actions(learned: Any, observations: np.ndarray, rewards: np.ndarray) -> np.ndarray:
    """Actions (T, A) of a policy of one robot in an episode."""
    learned.reset(np.arange(1))
    return np.concatenate(
        [
            learned.act(_Observation(obs[None], reward[None]))
            for obs, reward in zip(observations, rewards, strict=True)
        ]
    )


@dataclass(frozen=True)
class _Observation:
    policy: np.ndarray
    reward: np.ndarray
