"""A policy from elsewhere as a policy of the legged task."""

import numpy as np

from gaitforge.collectors.experts.imported.layout import Layout, Term
from gaitforge.collectors.experts.imported.networks import Arrays, Network, Normaliser
from gaitforge.collectors.legged.observations import POLICY_SLICES, PRIVILEGED_SLICES
from gaitforge.collectors.policy import Observation
from gaitforge.collectors.robots.commands import C
from gaitforge.collectors.robots.robot import N_JOINTS, RobotCard

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
            raise ValueError(f"{name} gives {outputs.shape[-1]} actions, not {N_JOINTS}")

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
