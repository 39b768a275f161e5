"""Check an imported expert: known answers, a stand, a walk, and the ranges of what it observes."""

import json
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gaitforge.collectors.experts.imported.importing import ANSWERS
from gaitforge.collectors.experts.imported.policy import ImportedPolicy
from gaitforge.collectors.legged.environment import LeggedEnvironment
from gaitforge.collectors.legged.episodes import EpisodeSpec
from gaitforge.collectors.legged.observations import POLICY_SLICES
from gaitforge.collectors.policies import Observation
from gaitforge.collectors.robots.commands import C
from gaitforge.collectors.robots.gait import GaitReference
from gaitforge.collectors.scenarios.randomisation import Randomisation
from gaitforge.collectors.timing import EPISODE_STEPS
from gaitforge.datasets.errors import amount

TOLERANCE = 1e-3
"""Largest difference from known answers, relative above 1: metadata have three decimals."""
ROBOTS = 16
SPEED_MS = 0.5
_LARGE = 10.0
"""Scaled terms are of order 1; joint velocities alone reach 20 rad/s where they are not scaled."""
_FAR = 5.0
"""Standard deviations from the policy's own mean."""
_KEYS = ("observation", "action", "qpos", "qvel", "command", "last_action")

Act = Callable[[Observation], np.ndarray]


@dataclass(frozen=True)
class Findings:
    """What a check found.

    Attributes:
        terms: rows with the columns of the observation, and the ranges of the policy's walk and of
            the environment's own gait, as the policy reads them.
        figures: falls of `ROBOTS` robots, the walk's speed error, errors from known answers.
        warnings: faults, in words.
    """

    terms: tuple[dict[str, Any], ...]
    figures: dict[str, Any]
    warnings: tuple[str, ...]


def check_imported(policy: ImportedPolicy, answers: Path) -> Findings:
    """Check a policy; `answers`: a file, or a folder that may hold `ANSWERS`.

    A file of known answers is JSON, or an NPZ without objects, of arrays with K rows:
    `observation`, and the `action` that belongs to it; and to test the terms, too, `qpos` (K, 19)
    and `qvel` (K, 18), MuJoCo's with the joints in the policy's order, `command`, `last_action`.

    Raises:
        ValueError: answers that cannot be read, or a robot that cannot be simulated.
    """
    figures: dict[str, Any] = {}
    warnings: list[str] = []
    files = [answers / name for name in ANSWERS] if answers.is_dir() else [answers]
    for file in files:
        if file.exists() or not answers.is_dir():
            _compare(policy, read_answers(file), figures, warnings)
    nominal = Randomisation.parsed({"preset": "none"})
    with closing(LeggedEnvironment(policy.robot, ROBOTS, randomisation=nominal)) as env:
        gait = GaitReference(policy.robot)
        robot = policy.robot

        def by_gait(seen: Observation) -> np.ndarray:
            targets = gait.joint_targets(seen.command, seen.clock)
            return (targets - robot.default_joint_pos_rad) / robot.action_scale_rad

        own = _roll(env, policy, "run", by_gait)
        stand, walk = (_roll(env, policy, skill, policy.act) for skill in ("stand", "run"))
    figures |= {"stood_fallen": stand.fallen, "walked_fallen": walk.fallen}
    figures |= {"speed_error_ms": walk.speed_error_ms, "robots": ROBOTS}
    for name, run in {"standing": stand, "walking": walk}.items():
        if run.not_finite:
            warnings.append(f"{name}: actions that are not finite, first at step {run.not_finite}")
        if run.fallen:
            warnings.append(f"{name}: {run.fallen} of {amount(ROBOTS, 'robot')} fell")
    terms, start = [], 0
    for index, term in enumerate(policy.layout.terms):
        now, usual = walk.terms[index], own.terms[index]
        stop = start + term.width * term.history
        row = {"term": term.name, "columns": f"{start}-{stop - 1}"}
        row |= {"walk_low": now.min(), "walk_high": now.max()}
        row |= {"gait_low": usual.min(), "gait_high": usual.max()}
        terms.append({name: _plain(value) for name, value in row.items()})
        if np.quantile(np.abs(usual), 0.99) > _LARGE and policy.normaliser is None:
            warnings.append(
                f"{term.name}: {np.abs(usual).max():.3g} as the policy reads it, which has no "
                "normaliser of its own: is its scale missing?"
            )
        warnings += _far(policy, term.name, slice(start, stop), usual)
        start = stop
    return Findings(tuple(terms), figures, tuple(warnings))


@dataclass
class _Run:
    terms: list[np.ndarray]
    fallen: int
    not_finite: int
    speed_error_ms: float


def _roll(env: LeggedEnvironment, policy: ImportedPolicy, skill: str, act: Act) -> _Run:
    """An episode on flat ground; the terms (K, width) are of robots that have not fallen."""
    ids = np.arange(env.num_robots)
    env.reset(ids, [EpisodeSpec(i, "flat", 0, skill, i, held_out=True) for i in ids.tolist()])
    if skill != "stand":
        env.target_command[:, C.VEL_X] = SPEED_MS
        env.target_command[:, [C.VEL_Y, C.YAW_RATE, C.BODY_HEIGHT]] = 0.0
    policy.reset(ids)
    up, seen, not_finite, errors = np.ones(len(ids), dtype=bool), [], 0, []
    for step in range(EPISODE_STEPS):
        observation = env.observe()
        terms = policy.terms(observation, np.full(len(ids), step == 0))
        seen.append([values[up] for values in terms])
        action = act(observation)
        if not np.isfinite(action).all():
            not_finite = not_finite or step + 1
            action = np.nan_to_num(action, nan=0.0, posinf=0.0, neginf=0.0)
        up &= ~env.step(action).terminated
        speed = env.physics.state.base_lin_vel_world[:, :2]
        errors.append(np.linalg.norm(speed, axis=1)[up] - observation.command[up, C.VEL_X])
    late = np.concatenate(errors[EPISODE_STEPS // 2 :])
    error = float(np.abs(late).mean()) if len(late) else float("nan")
    joined = [np.concatenate(values) for values in zip(*seen, strict=True)]
    return _Run(joined, int((~up).sum()), not_finite, error)


def _far(policy: ImportedPolicy, name: str, columns: slice, values: np.ndarray) -> list[str]:
    """A warning where the environment's values are far from the mean that the policy subtracts."""
    if policy.normaliser is None:
        return []
    mean, std = (each[columns] for each in policy.normaliser)
    repeats = len(mean) // values.shape[1]
    usual = np.tile(np.median(values, axis=0), repeats)
    away = np.abs(usual - mean) / np.maximum(std, 1e-2)
    if away.max() <= _FAR:
        return []
    worst = int(away.argmax())
    return [
        f"{name}: column {columns.start + worst} is around {usual[worst]:.3g}, the policy expects "
        f"{mean[worst]:.3g} +- {std[worst]:.2g}: are terms or joints in another order?"
    ]


def _compare(
    policy: ImportedPolicy,
    known: dict[str, np.ndarray],
    figures: dict[str, Any],
    warnings: list[str],
) -> None:
    """Compare terms and actions with known answers."""
    rows = known["observation"]
    if "qpos" in known:
        terms, start = terms_in(policy, known), 0
        for term, values in zip(policy.layout.terms, terms, strict=True):
            expected = rows[:, start : start + term.width * term.history]
            start += term.width * term.history
            error = _error(np.tile(values, term.history), expected)
            figures["terms_error"] = max(figures.get("terms_error", 0.0), error)
            if not error <= TOLERANCE:
                warnings.append(f"{term.name} differs from the known answers by {error:.1e}")
    if "action" in known:
        error = _error(policy.first_outputs(rows), known["action"])
        figures["action_error"] = error
        if not error <= TOLERANCE:
            warnings.append(f"the actions differ from the known answers by {error:.1e}")


def terms_in(policy: ImportedPolicy, known: dict[str, np.ndarray]) -> list[np.ndarray]:
    """The terms (K, width) of robots in the known states."""
    qpos, qvel, robot = known["qpos"], known["qvel"], policy.robot
    order = [policy.layout.joints.index(joint) for joint in robot.joint_names]
    ids = np.arange(len(qpos))
    nominal = Randomisation.parsed({"preset": "none"})
    with closing(LeggedEnvironment(robot, len(qpos), randomisation=nominal)) as env:
        env.reset(ids, [EpisodeSpec(i, "flat", 0, "stand", i) for i in ids.tolist()])
        state = env.physics.state
        state.base_pos[:], state.base_quat[:] = qpos[:, :3], qpos[:, 3:7]
        state.base_lin_vel_world[:], state.base_ang_vel_body[:] = qvel[:, :3], qvel[:, 3:6]
        state.joint_pos[:], state.joint_vel[:] = qpos[:, 7:][:, order], qvel[:, 6:][:, order]
        observation = env.observe()
        executed = policy.own_action(known["last_action"])
        observation.policy[:, slice(*POLICY_SLICES["last_action"])] = executed
        for term in policy.layout.terms:
            if term.name == "command":
                columns = [C[name.upper()] for name in term.columns]
                observation.command[:, columns] = known["command"]
        return policy.terms(observation, np.zeros(len(qpos), dtype=bool))


def read_answers(path: Path) -> dict[str, np.ndarray]:
    """Arrays of known answers; ValueError for a file without them."""
    try:
        if path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as arrays:
                known = {name: arrays[name] for name in _KEYS if name in arrays}
        else:
            raw = json.loads(path.read_text(encoding="utf-8"))
            known = {name: np.array(raw[name], np.float64) for name in _KEYS if name in raw}
        count = len(known["observation"])
        if any(value.ndim != 2 or len(value) != count for value in known.values()):
            raise ValueError("every array needs a row for each observation")
        if "qpos" in known and not {"qvel", "command", "last_action"} <= known.keys():
            raise ValueError("qpos needs qvel, command and last_action")
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{path} holds no known answers: {error}") from None
    return known


def _error(values: np.ndarray, expected: np.ndarray) -> float:
    """The largest difference, relative above 1; infinite for another shape."""
    if values.shape != expected.shape:
        return float("inf")
    return float((np.abs(values - expected) / np.maximum(1.0, np.abs(expected))).max())


def _plain(value: Any) -> Any:
    return float(value) if isinstance(value, np.floating) else value
