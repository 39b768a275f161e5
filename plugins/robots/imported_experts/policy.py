"""A policy from elsewhere as one of the legged task, and its layout: what it observes and sets.

The terms and the order of what is done to them (clip, scale, history) are those of the observation
managers of Isaac Lab and mjlab; clips and scales of legged_gym are written in the same way.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from gaitforge.collectors.legged.observations import POLICY_SLICES, PRIVILEGED_SLICES
from gaitforge.collectors.policy import Observation
from gaitforge.collectors.robots.kinematics import COMMAND_NAMES, C
from gaitforge.collectors.robots.robot import N_JOINTS, N_LEGS, RobotCard
from gaitforge.collectors.timing import CONTROL_DT_S
from gaitforge.plugins.robots.imported_experts.networks import Arrays, Network, Normaliser

WIDTHS = {
    **dict.fromkeys(("base_lin_vel", "base_ang_vel", "projected_gravity"), 3),
    **dict.fromkeys(("joint_pos", "joint_angle", "joint_vel", "actions"), N_JOINTS),
    **dict.fromkeys(("foot_contact", "gait_clock_sin", "gait_clock_cos"), N_LEGS),
    **dict.fromkeys(("command", "height_scan"), 0),
}
"""Terms that a policy may observe, and their widths: velocities of the trunk in its own frame, m/s
and rad/s; gravity's unit vector there; joint positions less the default pose, or absolute, rad;
joint velocities, rad/s; the policy's last action; feet on the ground and the gait's clock, FL, FR,
RL, RR. Widths of the command and of the heights of the trunk above the ground follow from keys."""
_ALIASES = {
    **dict.fromkeys(("velocity_commands", "commands", "twist"), "command"),
    **dict.fromkeys(("joint_pos_rel", "dof_pos"), "joint_pos"),
    **dict.fromkeys(("joint_vel_rel", "dof_vel"), "joint_vel"),
    **dict.fromkeys(("last_action", "action"), "actions"),
    **dict.fromkeys(("height_scanner", "heights"), "height_scan"),
}
_METADATA = {
    "joint_names": "joints",
    "default_joint_pos": "default_joint_pos",
    "joint_stiffness": "stiffness",
    "joint_damping": "damping",
    "action_scale": "action_scale",
}
_TERM_METADATA = {
    "observation_terms_scale": "scale",
    "observation_terms_clip": "clip",
    "observation_terms_history_length": "history",
}
"""Metadata of mjlab's ONNX files (mjlab/rl/exporter_utils.py), and the keys that they give."""

ByJoint = float | tuple[float, ...] | dict[str, float]
"""A number for all joints, one each in the policy's order, or by regular expressions of names."""
_STRICT = {"extra": "forbid"}


@dataclass(frozen=True)
class Term:
    """A term of the observation: clipped, then scaled.

    Attributes:
        name: one of `WIDTHS`; scale: one number, or one for each of its columns.
        history: steps that are stacked, 1 for the present one alone.
        columns: of the command, by `COMMAND_NAMES`.
        at_m: point of the trunk's frame whose linear velocity is observed, such as the IMU's.
        size_m, resolution_m, fastest, offset_m: of the heights: the grid around the trunk along and
            across the heading, the axis along which neighbours lie, and what is subtracted.
    """

    __pydantic_config__: ClassVar = _STRICT

    name: str
    scale: float | tuple[float, ...] = 1.0
    clip: tuple[float, float] | None = None
    history: int = 1
    columns: tuple[str, ...] = COMMAND_NAMES[:3]
    at_m: tuple[float, float, float] = (0.0, 0.0, 0.0)
    size_m: tuple[float, float] = (1.6, 1.0)
    resolution_m: float = 0.1
    fastest: Literal["x", "y"] = "x"
    offset_m: float = 0.0

    def __post_init__(self) -> None:
        if self.name not in WIDTHS:
            raise ValueError(f"no term '{self.name}'; allowed: {', '.join(WIDTHS)}")
        if unknown := set(self.columns) - set(COMMAND_NAMES):
            raise ValueError(f"no command {min(unknown)}; allowed: {', '.join(COMMAND_NAMES)}")
        if self.history < 1 or self.resolution_m <= 0 or min(self.size_m) < 0:
            raise ValueError("history has to be at least 1, sizes above 0")
        numbers = np.hstack([self.scale, self.at_m, self.size_m, self.resolution_m, self.offset_m])
        if not np.isfinite(numbers).all():
            raise ValueError(f"{self.name} needs finite numbers")
        if self.clip is not None and not self.clip[0] <= self.clip[1]:
            raise ValueError(f"clip of {self.name}: the low end comes first")
        if np.size(self.scale) not in (1, self.width):
            raise ValueError(f"{self.name} has {self.width} columns, not {np.size(self.scale)}")

    @property
    def width(self) -> int:
        """Columns of one step."""
        sizes = {"command": len(self.columns), "height_scan": len(self.points())}
        return sizes.get(self.name) or WIDTHS[self.name]

    def points(self) -> np.ndarray:
        """(K, 2): points of the heights in the heading frame, m."""
        x, y = (np.arange(round(s / self.resolution_m) + 1) * self.resolution_m - s / 2
                for s in self.size_m)  # fmt: skip
        grid = np.stack(np.meshgrid(x, y, indexing="ij"), axis=-1)
        return (grid if self.fastest == "y" else grid.swapaxes(0, 1)).reshape(-1, 2)


@dataclass(frozen=True)
class Layout:
    """Observation layout of a policy, and its action layout: a target for each joint.

    target = action_offset + action_scale x action, in rad.

    Attributes:
        joints: names of the robot's joints in the policy's order; terms: in order.
        default_joint_pos: rad; action_offset: rad, by default that pose.
        action_clip, observation_clip: largest magnitude of actions and scaled observations.
        control_hz: rate of the policy's actions, which are held in between.
        stiffness, damping: gains of the joints in training, Nm/rad and Nms/rad; None if unknown.
        history_order: of stacked steps; history_by: "term" where a term's steps lie together,
            "step" where a step's terms do.
        robot: name or path; used where an import names none.
    """

    __pydantic_config__: ClassVar = _STRICT

    joints: tuple[str, ...]
    default_joint_pos: ByJoint
    action_scale: ByJoint
    terms: tuple[Term, ...]
    action_offset: ByJoint | None = None
    action_clip: float | None = None
    observation_clip: float | None = None
    control_hz: float = 1 / CONTROL_DT_S
    stiffness: ByJoint | None = None
    damping: ByJoint | None = None
    history_order: Literal["oldest_first", "newest_first"] = "oldest_first"
    history_by: Literal["term", "step"] = "term"
    robot: str = ""

    def __post_init__(self) -> None:
        steps = 1 / CONTROL_DT_S / self.control_hz if self.control_hz > 0 else 0.0
        if steps < 1 or abs(steps - round(steps)) > 1e-6:
            raise ValueError(
                f"control_hz {self.control_hz:g} does not divide the task's {1 / CONTROL_DT_S:g} Hz"
            )
        for name in ("default_joint_pos", "action_scale", "action_offset", "stiffness", "damping"):
            self.by_joint(name)
        if not self.by_joint("action_scale").all():
            raise ValueError("action_scale has to differ from 0")
        for limit in (self.action_clip, self.observation_clip):
            if limit is not None and not limit > 0:
                raise ValueError("action_clip and observation_clip are magnitudes above 0")
        if self.history_by == "step" and len({term.history for term in self.terms}) > 1:
            raise ValueError("history_by step needs the same history of all terms")

    @property
    def period(self) -> int:
        """Control steps of an action."""
        return round(1 / CONTROL_DT_S / self.control_hz)

    def by_joint(self, name: str) -> np.ndarray:
        """(12,) values of an attribute in the policy's order, zeros where it is None."""
        value = getattr(self, name)
        if value is None and name == "action_offset":
            value = self.default_joint_pos
        if isinstance(value, dict):
            fits = [
                [v for k, v in value.items() if re.fullmatch(k, joint)] for joint in self.joints
            ]
            if wrong := [j for j, fit in zip(self.joints, fits, strict=True) if len(fit) != 1]:
                raise ValueError(f"{name} has to name {wrong[0]} once")
            value = [fit[0] for fit in fits]
        numbers = np.array(0.0 if value is None else value, dtype=np.float64)
        if numbers.size not in (1, len(self.joints)) or not np.isfinite(numbers).all():
            raise ValueError(f"{name} needs 1 or {len(self.joints)} finite numbers")
        return np.resize(numbers, len(self.joints))


def parse_layout(values: Mapping[str, Any], source: str) -> Layout:
    """The layout of a file's or a card's values; ValueError, in one line, for wrong ones."""
    from pydantic import TypeAdapter, ValidationError

    listed = values.get("terms", ())
    if not isinstance(listed, list | tuple):
        raise ValueError(f"{source}: terms: a list is needed")
    terms = [{"name": term} if isinstance(term, str) else term for term in listed]
    named = [
        {**term, "name": _ALIASES.get(str(term.get("name")), term.get("name"))}
        if isinstance(term, dict)
        else term
        for term in terms
    ]
    try:
        return TypeAdapter(Layout).validate_python({**values, "terms": named})
    except re.error as error:
        raise ValueError(f"{source}: {error.pattern!r} is no regular expression") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "layout"
        message = first["msg"].removeprefix("Value error, ")
        raise ValueError(f"{source}: {where}: {message}") from None


def layout_of_metadata(metadata: Mapping[str, str]) -> dict[str, Any]:
    """The keys of a layout that an ONNX file's metadata give; empty for a file without them."""
    lists = {key: metadata[name].split(",") for name, key in _METADATA.items() if name in metadata}
    values: dict[str, Any] = {
        key: entries if key == "joints" else [float(entry) for entry in entries]
        for key, entries in lists.items()
    }
    if "observation_names" in metadata:
        terms = [{"name": name} for name in metadata["observation_names"].split(",")]
        for name, key in _TERM_METADATA.items():
            entries = metadata[name].split(",") if name in metadata else []
            for term, entry in zip(terms, entries, strict=False):
                term[key] = _of_entry(key, entry)
        values["terms"] = terms
    return values


def _of_entry(key: str, entry: str) -> Any:
    """A term's value from its entry: numbers of one term are separated by semicolons."""
    numbers = [float(number) for number in entry.split(";")]
    if key == "history":  # 0 is no history
        return max(1, round(numbers[0]))
    if key == "clip":
        return None if np.isinf(numbers).all() else numbers
    return numbers if len(numbers) > 1 else numbers[0]


_BLOCKS = {"base_lin_vel": "base_lin_vel_body", "base_ang_vel": "base_ang_vel_body"}


class ImportedPolicy:
    """A network that observes the terms of its layout, without noise, and sets joint targets.

    The observed last action is the executed one: that of the policy, with the noise of a
    collection, or a driver's. Joints are matched by name.

    Raises:
        ValueError: the robot has other joints, or the network gives another number of actions.
    """

    def __init__(self, name: str, robot: RobotCard, layout: Layout, network: Network):
        if sorted(layout.joints) != sorted(robot.joint_names):
            raise ValueError(
                f"{name} drives the joints {', '.join(layout.joints)}; {robot.name} has "
                f"{', '.join(robot.joint_names)}"
            )
        self.name = name
        self.robot = robot
        self.layout = layout
        self._network = network
        self._order = np.array([robot.joint_names.index(joint) for joint in layout.joints])
        self._back = np.argsort(self._order)
        self._default = layout.by_joint("default_joint_pos")
        self._offset = layout.by_joint("action_offset")
        self._scale = layout.by_joint("action_scale")
        self._history: Arrays = []
        self._state: Arrays = []
        self._held = np.zeros((0, N_JOINTS))
        self._steps = np.zeros(0, dtype=np.int64)
        outputs = self.first_outputs(np.zeros((1, width(layout))))
        if outputs.shape != (1, N_JOINTS):
            raise ValueError(
                f"{name} gives actions of shape {outputs.shape} for one robot, not (1, {N_JOINTS})"
            )

    @property
    def normaliser(self) -> Normaliser | None:
        """See `Network.normaliser`."""
        return self._network.normaliser

    def parameters(self) -> int:
        """Number of trained parameters."""
        return self._network.parameters

    def reset(self, ids: np.ndarray) -> None:
        """See `Policy.reset`."""
        if len(self._steps):
            self._steps[ids] = 0
            for part, start in zip(self._state, self._network.state, strict=True):
                part[ids] = start

    def act(self, observation: Observation) -> np.ndarray:
        """(N, 12) float32 actions; not finite where the network's are not."""
        rows = len(observation.policy)
        if len(self._steps) != rows:
            self._steps = np.zeros(rows, dtype=np.int64)
            self._held = np.zeros((rows, N_JOINTS))
            self._state = _rows(self._network.state, rows)
            steps = [(rows, term.history, term.width) for term in self.layout.terms]
            self._history = [np.zeros(shape, np.float32) for shape in steps]
        due = self._steps % self.layout.period == 0
        self._remember(self.terms(observation, self._steps == 0), due)
        output, state = self._network.step(self._joined(self._history), self._state)
        for part, after in zip(self._state, state, strict=True):
            part[due] = after[due]
        self._held[due] = self.own_action(output)[due]
        self._steps += 1
        return self._held.astype(np.float32)

    def own_action(self, output: np.ndarray) -> np.ndarray:
        """(N, 12) actions of the task, for outputs of the network."""
        action = _within(self.layout.action_clip, output)
        targets = (self._offset + self._scale * action)[:, self._back]
        return (targets - self.robot.default_joint_pos_rad) / self.robot.action_scale_rad

    def first_outputs(self, inputs: np.ndarray) -> np.ndarray:
        """Outputs (N, 12) of the network at an episode's first step."""
        state = _rows(self._network.state, len(inputs))
        return self._network.step(inputs.astype(np.float32), state)[0]

    def terms(self, observation: Observation, first: np.ndarray) -> Arrays:
        """The terms (N, width), clipped and scaled; `first` (N,): no last action yet."""
        seen = {
            name: observation.privileged[:, slice(*PRIVILEGED_SLICES[_BLOCKS.get(name, name)])]
            for name in ("base_lin_vel", "base_ang_vel", "projected_gravity", "joint_vel",
                         "foot_contact", "gait_clock_sin", "gait_clock_cos")
        }  # fmt: skip
        robot = self.robot
        order = self._order
        error = observation.privileged[:, slice(*PRIVILEGED_SLICES["joint_pos_error"])]
        executed = observation.policy[:, slice(*POLICY_SLICES["last_action"])]
        targets = robot.default_joint_pos_rad + robot.action_scale_rad * executed.astype(np.float64)
        action = (targets[:, order] - self._offset) / self._scale
        angle = (error + robot.default_joint_pos_rad)[:, order]
        seen |= {"joint_angle": angle, "joint_pos": angle - self._default}
        seen |= {"joint_vel": seen["joint_vel"][:, order]}
        seen |= {"actions": np.where(first[:, None], 0.0, action)}
        return [self._scaled(term, seen, observation) for term in self.layout.terms]

    def first_inputs(self, terms: Arrays) -> np.ndarray:
        """(N, D): what the network reads at an episode's first step, of terms (N, width)."""
        pairs = zip(terms, self.layout.terms, strict=True)
        return self._joined(
            [np.repeat(values[:, None], term.history, axis=1) for values, term in pairs]
        )

    def _scaled(
        self, term: Term, seen: dict[str, np.ndarray], observation: Observation
    ) -> np.ndarray:
        if term.name == "command":
            columns = [C[name.upper()] for name in term.columns]
            value = observation.command[:, columns]
        elif term.name == "height_scan":
            value = observation.heights(term.points()) - term.offset_m
        else:
            value = seen[term.name]
        if term.name == "base_lin_vel" and any(term.at_m):
            value = value + np.cross(seen["base_ang_vel"], np.array(term.at_m))
        if term.clip is not None:
            value = np.clip(value, *term.clip)
        scaled = _within(self.layout.observation_clip, value * np.array(term.scale))
        return scaled.astype(np.float32)

    def _remember(self, terms: Arrays, due: np.ndarray) -> None:
        """Add the terms to their histories, which an episode's first step fills."""
        first = due & (self._steps == 0)
        for past, now in zip(self._history, terms, strict=True):
            past[due, :-1] = past[due, 1:]
            past[due, -1] = now[due]
            past[first] = now[first, None]

    def _joined(self, history: Arrays) -> np.ndarray:
        """(N, D) of histories (N, steps, width), in the layout's order."""
        newest = self.layout.history_order == "newest_first"
        steps = [past[:, ::-1] if newest else past for past in history]
        if self.layout.history_by == "step":
            steps = [np.concatenate(steps, axis=2)]
        return np.concatenate([part.reshape(len(part), -1) for part in steps], axis=1)


def width(layout: Layout) -> int:
    """Numbers of an observation."""
    return sum(term.width * term.history for term in layout.terms)


def _within(limit: float | None, values: np.ndarray) -> np.ndarray:
    return values if limit is None else np.clip(values, -limit, limit)


def _rows(state: Arrays, rows: int) -> Arrays:
    """The start's state for N robots."""
    return [np.repeat(part[None], rows, axis=0) for part in state]
