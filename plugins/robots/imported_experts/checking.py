"""Check an imported expert: known answers, a stand, a walk, and the ranges of what it observes."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gaitforge.collectors.legged.environment import LeggedEnvironment
from gaitforge.collectors.legged.episodes import EpisodeSpec
from gaitforge.collectors.legged.observations import POLICY_SLICES
from gaitforge.collectors.policy import Observation
from gaitforge.collectors.robots.kinematics import C, GaitReference
from gaitforge.collectors.rotations import yaw_of
from gaitforge.collectors.scenarios.randomisation import Randomisation
from gaitforge.collectors.timing import EPISODE_STEPS
from gaitforge.common.errors import amount
from gaitforge.plugins.robots.imported_experts.importing import ANSWERS, read_answers
from gaitforge.plugins.robots.imported_experts.policy import ImportedPolicy, width

TOLERANCE = 1e-3
"""Largest difference from known answers, relative above 1: metadata have three decimals."""
ROBOTS = 16
SPEED_MS = 0.5
MOST_ERROR = 0.5
"""Largest error of the walk's speed, as a share of the commanded one."""
_STILL = 1e-3
"""Deviation of actions, over time, below which a network gives the same answer always."""
_LARGE = 30.0
"""Joint velocities without a scale, as Isaac Lab's policies read them, reach 20 rad/s."""
_FAR = 5.0
"""Standard deviations from the policy's own mean."""

Act = Callable[[Observation], np.ndarray]


@dataclass(frozen=True)
class Findings:
    """Findings of a check.

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
    """Check a policy; `answers`: a file for `read_answers`, or a folder that may hold one.

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

        gait_run = _roll(env, policy, "run", by_gait)
        stand, walk = (_roll(env, policy, skill, policy.act) for skill in ("stand", "run"))
    figures |= {"stood_fallen": stand.fallen, "walked_fallen": walk.fallen}
    figures |= {"speed_ms": walk.speed_ms, "speed_error_ms": walk.speed_error_ms, "robots": ROBOTS}
    for name, run in {"standing": stand, "walking": walk}.items():
        if run.not_finite:
            warnings.append(f"{name}: actions that are not finite, first at step {run.not_finite}")
        if run.fallen:
            warnings.append(f"{name}: {run.fallen} of {amount(ROBOTS, 'robot')} fell")
    if walk.speed_error_ms > MOST_ERROR * SPEED_MS and _is_told_the_speed(policy):
        warnings.append(_missed_speed(walk))
    owner = _owners(policy)
    terms = []
    for index, term in enumerate(policy.layout.terms):
        columns = np.flatnonzero(owner == index)
        row = {"term": term.name, "columns": f"{columns[0]}-{columns[-1]}"}
        for name, run in {"walk": walk, "gait": gait_run}.items():
            values = run.terms[index]
            row |= {f"{name}_low": float(values.min()), f"{name}_high": float(values.max())}
        terms.append(row)
    return Findings(tuple(terms), figures, (*warnings, *_strange(policy, gait_run.terms)))


@dataclass
class _Run:
    terms: list[np.ndarray]
    fallen: int
    not_finite: int
    speed_ms: float
    speed_error_ms: float
    action_spread: float


def _roll(env: LeggedEnvironment, policy: ImportedPolicy, skill: str, act: Act) -> _Run:
    """An episode on flat ground; terms (K, width) and speeds are of robots that have not fallen.

    Speeds are along the heading, in the episode's second half; NaN if all have fallen by then.
    """
    ids = np.arange(env.num_robots)
    env.reset(ids, [EpisodeSpec(i, "flat", 0, skill, i, held_out=True) for i in ids.tolist()])
    if skill != "stand":
        env.target_command[:, C.VEL_X] = SPEED_MS
        env.target_command[:, [C.VEL_Y, C.YAW_RATE, C.BODY_HEIGHT]] = 0.0
    policy.reset(ids)
    up = np.ones(len(ids), dtype=bool)
    seen = []
    not_finite = 0
    speeds = []
    errors = []
    actions = []
    for step in range(EPISODE_STEPS):
        observation = env.observe()
        terms = policy.terms(observation, np.full(len(ids), step == 0))
        seen.append([values[up] for values in terms])
        action = act(observation)
        if not np.isfinite(action).all():
            not_finite = not_finite or step + 1
            action = np.nan_to_num(action, nan=0.0, posinf=0.0, neginf=0.0)
        up &= ~env.step(action).terminated
        state = env.physics.state
        yaw = yaw_of(state.base_quat)
        velocity = state.base_lin_vel_world
        speed = velocity[:, 0] * np.cos(yaw) + velocity[:, 1] * np.sin(yaw)
        speeds.append(speed[up])
        errors.append(np.abs(speed - observation.command[:, C.VEL_X])[up])
        actions.append(action)
    joined = [np.concatenate(values) for values in zip(*seen, strict=True)]
    spread = float(np.std(actions, axis=0).max())
    means = (_late_mean(speeds), _late_mean(errors))
    return _Run(joined, int((~up).sum()), not_finite, *means, spread)


def _late_mean(steps: list[np.ndarray]) -> float:
    """Mean over the second half of an episode's steps; NaN without any value."""
    late = np.concatenate(steps[len(steps) // 2 :])
    return float(late.mean()) if len(late) else float("nan")


def _is_told_the_speed(policy: ImportedPolicy) -> bool:
    """Whether the policy reads the commanded speed; one that does not may well stand."""
    return any(term.name == "command" and "vel_x" in term.columns for term in policy.layout.terms)


def _missed_speed(walk: _Run) -> str:
    """Warning of a walk far from the commanded speed, with the likely causes."""
    text = f"walking: {walk.speed_ms:.2f} m/s along the heading, told {SPEED_MS} m/s"
    if walk.action_spread < _STILL:
        return (
            f"{text}, and the actions never change: a network whose weights are lost, or an "
            "action_scale near 0"
        )
    return (
        f"{text}: likely causes are action_scale (missing, or applied twice), the scale of the "
        "command, an observation normaliser (missing, or applied twice), or other signs or names "
        "of joints"
    )


def _owners(policy: ImportedPolicy) -> np.ndarray:
    """(D,) index of the term of each column of an observation."""
    marks = [np.full((1, term.width), k) for k, term in enumerate(policy.layout.terms)]
    return policy.first_inputs(marks)[0]


def _strange(policy: ImportedPolicy, usual: list[np.ndarray]) -> list[str]:
    """Warnings of terms that are not, on the environment's gait, as the policy's scales suggest."""
    typical = [np.median(values, axis=0)[None] for values in usual]
    if policy.normaliser is None:
        names = [term.name for term in policy.layout.terms]
        largest = [float(np.quantile(np.abs(values), 0.99)) for values in usual]
        return [
            f"{name}: {peak:.3g} as the policy reads it, which does not normalise: is a scale lost?"
            for name, peak in zip(names, largest, strict=True)
            if peak > _LARGE
        ]
    (mean, std), now = policy.normaliser, policy.first_inputs(typical)[0]
    away = np.abs(now - mean) / np.maximum(std, 1e-2)
    worst = _worst(policy, away)
    return [
        f"{name}: column {column} is around {now[column]:.3g}, the policy expects "
        f"{mean[column]:.3g} +- {std[column]:.2g}: are terms or joints in another order?"
        for name, column in worst.items()
        if away[column] > _FAR
    ]


def _worst(policy: ImportedPolicy, errors: np.ndarray) -> dict[str, int]:
    """Term -> its column with the largest of D errors."""
    owner = _owners(policy)
    return {
        term.name: int(np.where(owner == k, errors, -1.0).argmax())
        for k, term in enumerate(policy.layout.terms)
    }


def _compare(
    policy: ImportedPolicy,
    known: dict[str, np.ndarray],
    figures: dict[str, Any],
    warnings: list[str],
) -> None:
    """Compare terms and actions with known answers."""
    rows = known["observation"]
    if rows.shape[1] != width(policy.layout):
        raise ValueError(f"the known observations have {rows.shape[1]} numbers, the layout has "
                         f"{width(policy.layout)}")  # fmt: skip
    if "qpos" in known:
        errors = _errors(policy.first_inputs(terms_in(policy, known)), rows)
        figures["terms_error"] = float(errors.max())
        warnings += [
            f"{name}: column {column} differs from the known answers by {errors[column]:.1e}"
            for name, column in _worst(policy, errors).items()
            if not errors[column] <= TOLERANCE
        ]
    if "action" in known:
        error = float(_errors(policy.first_outputs(rows), known["action"]).max())
        figures["action_error"] = error
        if not error <= TOLERANCE:
            warnings.append(f"the actions differ from the known answers by {error:.1e}")


def terms_in(policy: ImportedPolicy, known: dict[str, np.ndarray]) -> list[np.ndarray]:
    """The terms (K, width) of robots in the known states."""
    qpos = known["qpos"]
    qvel = known["qvel"]
    robot = policy.robot
    order = [policy.layout.joints.index(joint) for joint in robot.joint_names]
    ids = np.arange(len(qpos))
    nominal = Randomisation.parsed({"preset": "none"})
    with closing(LeggedEnvironment(robot, len(qpos), randomisation=nominal)) as env:
        env.reset(ids, [EpisodeSpec(i, "flat", 0, "stand", i) for i in ids.tolist()])
        state = env.physics.state
        state.base_pos[:] = qpos[:, :3]
        state.base_quat[:] = qpos[:, 3:7]
        state.base_lin_vel_world[:] = qvel[:, :3]
        state.base_ang_vel_body[:] = qvel[:, 3:6]
        state.joint_pos[:] = qpos[:, 7:][:, order]
        state.joint_vel[:] = qvel[:, 6:][:, order]
        observation = env.observe()
        executed = policy.own_action(known["last_action"])
        observation.policy[:, slice(*POLICY_SLICES["last_action"])] = executed
        for term in policy.layout.terms:
            if term.name == "command":
                columns = [C[name.upper()] for name in term.columns]
                observation.command[:, columns] = known["command"]
        return policy.terms(observation, np.zeros(len(qpos), dtype=bool))


def _errors(values: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """The largest difference of each column, relative above 1; ValueError for another width."""
    if values.shape != expected.shape:
        raise ValueError(f"the known answers have rows of {expected.shape[-1]} numbers, not "
                         f"{values.shape[-1]}")  # fmt: skip
    return (np.abs(values - expected) / np.maximum(1.0, np.abs(expected))).max(axis=0)
