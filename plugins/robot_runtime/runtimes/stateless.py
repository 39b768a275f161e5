"""A policy as an ONNX model without states, for programs that feed one input and read one output.

Such programs keep the last n observations themselves. The model reads the n frames and gives the
raw action. That is possible where a network remembers its last n inputs and nothing else: BoT and
the MLPs with a stacked memory (`learners/models/base.py: StackedMemory`).

A frame has the terms that both runtimes know: gyroscope, gravity, velocity command, joint positions
relative to the default pose, joint velocities, last action. The model turns them into the policy's
own observation. The other 13 numbers of the command are constants, the middle of a skill's ranges.
A policy that is asked for a return has the share 1 as a constant: nothing is counted down.

An episode's start. The policy's history starts from zero tokens. rl_sar fills it with zeros and
unitree_rl_lab with the first observation. Both clear the last action, which is never 0 afterwards:
frames that are older than one whose last action is 0 are from before the episode, and their tokens
are set to 0. So the model equals the policy from the first step on.

Legend: n frames, K numbers of a frame, A action, C numbers of the condition.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from gaitforge.collectors.robots.kinematics import NEUTRAL, C, command_scale
from gaitforge.collectors.scenarios.skills import ALL_SKILLS, SKILLS, Skill
from gaitforge.common.errors import names_allowed
from gaitforge.learners.export.description import RobotFacts
from gaitforge.learners.export.export import (
    TOLERANCE,
    PolicyExport,
    onnx_packages,
    to_onnx,
    trace,
)
from gaitforge.learners.models.base import BoundedNetwork, HistoryNetwork, StackedMemory
from gaitforge.learners.policy_network import PolicyNetwork
from gaitforge.learners.tokens import RETURN_TO_GO, TARGET
from gaitforge.plugins.robot_runtime.c_code.robots import card_of, facts_of

GYRO, GRAVITY, VELOCITY = "gyro", "gravity", "velocity_command"
JOINT_POS, JOINT_VEL, LAST = "joint_pos_rel", "joint_vel", "last_action"
FRAME = {GYRO: 3, GRAVITY: 3, VELOCITY: 3, JOINT_POS: 12, JOINT_VEL: 12, LAST: 12}
"""Terms of a frame, in order, and their numbers; SI units, joints in the policy's order."""
FRAME_SIZE = sum(FRAME.values())
VELOCITIES = (C.VEL_X, C.VEL_Y, C.YAW_RATE)
"""The commands that the runtimes give; all others are constants."""
_CHECKED_STEPS = 160


@dataclass(frozen=True)
class StatelessOptions:
    """Options of the formats for robots' runtimes: whose commands are the constants.

    Attributes:
        skill: of the policy's training, whose commands are the constants; empty for the moving one
            whose commands ramp slowest.
    """

    skill: str = ""


@dataclass(frozen=True)
class FixedCommand:
    """The constants of a stateless model.

    Attributes:
        skill: its name.
        values: (16,) the command; the numbers of `VELOCITIES` are not used.
        velocities: (low, high) of each of `VELOCITIES`, in m/s and rad/s, 0 included.
    """

    skill: str
    values: tuple[float, ...]
    velocities: tuple[tuple[float, float], ...]

    def lines(self) -> list[str]:
        """What they are, in words, a line each."""
        names = [c.name.lower() for c in C]
        spans = zip(VELOCITIES, self.velocities, strict=True)
        given = [f"{names[c]} {low:g} to {high:g}" for c, (low, high) in spans]
        fixed = [f"{names[c]} {self.values[c]:g}" for c in C if c not in VELOCITIES]
        return [
            f"skill {self.skill}: the runtime commands {', '.join(given)} (m/s, rad/s)",
            f"fixed: {', '.join(fixed)}",
        ]


def fixed_command(export: PolicyExport, options: StatelessOptions) -> FixedCommand:
    """The constants of a policy's stateless model.

    The highest speed is the skill's own; sideways and turning speeds are those that the policy has
    met.

    Raises:
        ValueError: a skill that the policy was not trained on, or a robot that is not here.
    """
    facts = facts_of(export)
    skill = _skill(options.skill, trained_skills(export.metadata))
    ranges = NEUTRAL | skill.ranges
    scale = command_scale(card_of(export))
    middle = np.array([sum(ranges[c]) / 2 for c in C]) * scale
    moves = middle[C.LOCOMOTE] > 0
    met = [(bounds.low, bounds.high) for bounds in facts.command]
    spans = [(0.0, float(ranges[C.VEL_X][1] * scale[C.VEL_X])), *(met[c] for c in VELOCITIES[1:])]
    velocities = tuple((min(0.0, a), max(0.0, b)) if moves else (0.0, 0.0) for a, b in spans)
    return FixedCommand(skill.name, tuple(middle.tolist()), velocities)


def trained_skills(metadata: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of the skills that a policy was trained on; all of them if its run does not say."""
    evaluation = metadata["source"].get("evaluation")
    grid = evaluation.get("grid") if isinstance(evaluation, Mapping) else None
    names = grid.get("skills", ()) if isinstance(grid, Mapping) else ()
    return tuple(name for name in names if name in ALL_SKILLS) or tuple(SKILLS)


def _skill(name: str, trained: Sequence[str]) -> Skill:
    if name and name not in trained:
        raise ValueError(f"untrained skill '{name}'; {names_allowed(name, trained)}")
    if name:
        return ALL_SKILLS[name]

    def order(skill: Skill) -> tuple[bool, bool, float]:
        ranges = NEUTRAL | skill.ranges
        return ranges[C.LOCOMOTE][1] == 0, skill.passage is not None, sum(ranges[C.ACCEL_LIMIT])

    return min((ALL_SKILLS[name] for name in trained), key=order)


class StatelessPolicy(nn.Module):
    """n frames of observation terms, (1, n * K) -> raw action (1, A), in action units.

    The frames come oldest first, by frame (all terms of a frame together), or `by_term` (all frames
    of a term together).

    Raises ValueError for a network that remembers more than its last n inputs.
    """

    input_names: ClassVar = ["obs"]
    """The name that unitree_rl_lab looks for; rl_sar feeds the first input, whatever its name."""
    output_names: ClassVar = ["actions"]

    lower: Tensor
    upper: Tensor
    fixed: Tensor
    default_pos: Tensor
    later: Tensor
    condition: Tensor | None

    def __init__(
        self, policy: PolicyNetwork, facts: RobotFacts, command: FixedCommand, by_term: bool
    ) -> None:
        super().__init__()
        bounded = isinstance(policy.network, BoundedNetwork)
        network = policy.network.network if bounded else policy.network
        check_history(network, facts.robot)
        self.policy = policy
        self.history = network
        self.bounded = bounded
        self.steps = int(network.memory.steps)
        self.by_term = by_term
        self.limit = facts.action_limit
        self.register_buffer("default_pos", torch.tensor(facts.default_joint_pos_rad))
        low, high = zip(*command.velocities, strict=True)
        self.register_buffer("lower", torch.tensor(low))
        self.register_buffer("upper", torch.tensor(high))
        self.register_buffer("fixed", torch.tensor(command.values)[len(VELOCITIES) :])
        # later[h, k] is 1 where frame k is newer than frame h.
        self.register_buffer("later", torch.ones(self.steps, self.steps).triu(1))
        self.register_buffer("condition", _constant_condition(policy))
        self.eval()

    def example_inputs(self) -> tuple[Tensor]:
        """Zeros, for tracing."""
        return (torch.zeros(1, self.steps * FRAME_SIZE),)

    def forward(self, obs: Tensor) -> tuple[Tensor]:
        """See the class."""
        terms = self._terms(obs)
        last = terms[LAST].clamp(-self.limit, self.limit)
        seen = self.policy.observation(self._stored(terms, last), last)
        condition = None if self.condition is None else self.condition.expand(self.steps, -1)
        tokens = self.history.narrowed(self.policy.tokens(seen, condition))
        first = (terms[LAST].abs().amax(dim=1) == 0.0).float()
        within = (self.later @ first == 0.0).float()
        action = self.history.encode((tokens * within[:, None]).reshape(1, -1))
        if self.bounded:
            action = action.tanh()
        return (self.policy.restored(action, seen[-1:]),)

    def _terms(self, obs: Tensor) -> dict[str, Tensor]:
        """(1, n * K) -> term -> (n, its numbers)."""
        if not self.by_term:
            frames = obs.reshape(self.steps, FRAME_SIZE)
            return dict(zip(FRAME, frames.split(list(FRAME.values()), dim=1), strict=True))
        sizes = [self.steps * numbers for numbers in FRAME.values()]
        parts = obs.reshape(-1).split(sizes)
        return {name: part.reshape(self.steps, -1) for name, part in zip(FRAME, parts, strict=True)}

    def _stored(self, terms: Mapping[str, Tensor], last: Tensor) -> Tensor:
        """Frames as the policy's stored observations (n, Ds), fields in its order."""
        joint_pos = terms[JOINT_POS] + self.default_pos
        velocity = terms[VELOCITY].clamp(self.lower, self.upper)
        fields = {
            "projected_gravity": terms[GRAVITY],
            "joint_vel": terms[JOINT_VEL],
            "sin_joint_pos": joint_pos.sin(),
            "cos_joint_pos": joint_pos.cos(),
            "base_ang_vel_body": terms[GYRO],
            "last_action": last,
            "command": torch.cat([velocity, self.fixed.expand(self.steps, -1)], dim=1),
        }
        return torch.cat([fields[name] for name in self.policy.layout.stored_slices], dim=1)


def check_history(network: nn.Module, what: str) -> None:
    """Raise ValueError unless a network remembers exactly its last n inputs."""
    stacked = isinstance(network, HistoryNetwork) and isinstance(network.memory, StackedMemory)
    if not stacked:
        raise ValueError(
            f"{type(network).__name__} remembers more than one input of {what}'s runtime can hold; "
            "--formats c has its memory inside, and --formats onnx as states"
        )


def _constant_condition(policy: PolicyNetwork) -> Tensor | None:
    """(1, C) the condition of a policy that is asked for the expert's return; None without one."""
    if not policy.conditioned:
        return None
    columns = policy.condition.in_control({RETURN_TO_GO: torch.ones(1), TARGET: torch.ones(1)})
    return torch.stack(columns, dim=-1)


@dataclass(frozen=True)
class StatelessModel:
    """A written model: the ONNX file, its largest error, its constants, and n."""

    content: bytes
    error: float
    command: FixedCommand
    steps: int


def stateless_model(
    export: PolicyExport, options: StatelessOptions, by_term: bool
) -> StatelessModel:
    """The stateless ONNX model of a policy, checked against the policy.

    Raises:
        ValueError: a network that needs more than its last n inputs, a skill or robot that does
            not fit, missing packages, or a model that differs from the policy.
    """
    facts = facts_of(export)
    command = fixed_command(export, options)
    with torch.no_grad():
        module = StatelessPolicy(export.policy, facts, command, by_term)
    properties = {
        "joint_names": facts.joint_names,
        "observation_names": list(FRAME),
        "history_length": [module.steps],
        "skill": command.skill,
        "command": list(command.values),
    }
    traced: Any = module  # its names and example inputs are those of a `PolicyStep`
    content = to_onnx(trace(traced), traced, properties)
    error = _largest_error(content, module, export, command)
    if not error <= TOLERANCE:
        raise ValueError(
            f"the stateless model differs from the policy by {error:.1e}, more than "
            f"{TOLERANCE:.0e}; it is not written"
        )
    return StatelessModel(content, error, command, module.steps)


def _largest_error(
    content: bytes, module: StatelessPolicy, export: PolicyExport, command: FixedCommand
) -> float:
    """The largest difference from the policy in an episode, relative to actions above 1."""
    policy = export.policy
    facts = facts_of(export)
    _, runtime = onnx_packages()
    session = runtime.InferenceSession(content, providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(0)
    history = np.zeros((module.steps, FRAME_SIZE), np.float32)
    state = policy.init_state(1)
    last = np.zeros(policy.act_dim, np.float32)
    worst = 0.0
    for _ in range(_CHECKED_STEPS):
        frame = _random_frame(policy, command, last, rng)
        history = np.concatenate([history[1:], np.concatenate([*frame.values()])[None]])
        [action] = session.run(None, {"obs": as_input(history, module.by_term)})
        fields = {
            "projected_gravity": frame[GRAVITY],
            "joint_vel": frame[JOINT_VEL],
            "sin_joint_pos": np.sin(frame[JOINT_POS] + facts.default_joint_pos_rad),
            "cos_joint_pos": np.cos(frame[JOINT_POS] + facts.default_joint_pos_rad),
            "base_ang_vel_body": frame[GYRO],
            "last_action": last,
            "command": np.concatenate([frame[VELOCITY], command.values[len(VELOCITIES) :]]),
        }
        stored = np.concatenate([fields[name] for name in policy.layout.stored_slices])
        with torch.no_grad():
            seen = policy.observation(torch.from_numpy(stored).float()[None])
            expected, state = policy.step(seen, state, module.condition)
        expected = expected[0].numpy()
        error = np.abs(action[0] - expected) / np.maximum(1.0, np.abs(expected))
        worst = max(worst, float(error.max()))
        last = np.clip(expected, -facts.action_limit, facts.action_limit)
    return worst


def as_input(history: np.ndarray, by_term: bool) -> np.ndarray:
    """Frames (n, K), oldest first -> the model's input (1, n * K)."""
    if not by_term:
        return history.reshape(1, -1)
    places = np.cumsum([0, *FRAME.values()])
    parts = [history[:, a:b].ravel() for a, b in pairwise(places)]
    return np.concatenate(parts)[None]


def _random_frame(
    policy: PolicyNetwork, command: FixedCommand, last: np.ndarray, rng: np.random.Generator
) -> dict[str, np.ndarray]:
    """A random frame, distributed like the data's, with commands in their ranges."""
    noise = torch.from_numpy(rng.normal(size=policy.layout.obs_dim)).float()
    values = policy.obs_normaliser.restore(noise).numpy()
    places = policy.layout.stored_slices
    low, high = np.transpose(command.velocities)
    return {
        GYRO: values[slice(*places["base_ang_vel_body"])],
        GRAVITY: values[slice(*places["projected_gravity"])],
        VELOCITY: rng.uniform(low, high).astype(np.float32),
        JOINT_POS: rng.normal(0.0, 0.3, policy.act_dim).astype(np.float32),
        JOINT_VEL: values[slice(*places["joint_vel"])],
        LAST: last,
    }
