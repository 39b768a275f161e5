"""Exported files of robots' runtimes in the control loop of N simulated robots.

The model is fed as its runtime would feed it: terms, their order and scales, history and clips as
the runtime's own configuration says, joints by the motors' numbers. What a wrong entry of the file
would do on the robot it does here.

The runtimes command three velocities. The other commands of an episode are not read: the model has
its own, which suit the skill that it was exported for.
"""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gaitforge.common.files import sha256_file
from gaitforge.learners.export.onnx_policy import read_description
from gaitforge.plugins.robot_runtime.runtimes import rl_sar, unitree_rl_lab
from gaitforge.plugins.robot_runtime.runtimes.configuration import read_yaml
from gaitforge.plugins.robot_runtime.runtimes.stateless import (
    GRAVITY,
    GYRO,
    JOINT_POS,
    JOINT_VEL,
    LAST,
    VELOCITIES,
    VELOCITY,
)

if TYPE_CHECKING:
    from gaitforge.learners.control.control import ControlObservation

Array = np.ndarray


class RuntimePolicy(ABC):
    """A runtime's exported files for `num_robots` robots; arguments as `OnnxPolicy`.

    Raises ValueError for an export without the runtime's files, damaged ones, missing packages, or
    a return target: it is a constant of the model.
    """

    runtime: str

    def __init__(
        self,
        folder: Path | str,
        num_robots: int = 1,
        name: str = "exported",
        return_target: float = 1.0,
        action_limit: float = float("inf"),
    ) -> None:
        if num_robots < 1:
            raise ValueError(f"num_robots must be at least 1, got {num_robots}")
        self.name = name
        self.num_robots = num_robots
        self.description = read_description(folder)
        asks = self.description["return_to_go"] or self.description["target"]
        if asks and return_target != 1.0:
            raise ValueError(f"{folder}: the model for {self.runtime} asks for the return 1.0 only")
        self._folder = Path(folder)
        control = self.description["control"] or {}
        self._robot = str(control.get("robot", ""))
        self._read()
        joints = control["joint_names"]
        self._motors = [joints.index(name) for name in control["motor_names"]]
        self._default = np.array(control["default_joint_pos_rad"])
        self._scale = float(control["action_scale_rad"])
        self._limit = action_limit
        fields = self.description["observation"]["fields"]
        self._places = {name: slice(f["start"], f["stop"]) for name, f in fields.items()}
        self._shape = num_robots, int(self.description["observation"]["dim"])
        self._last = np.zeros((num_robots, len(joints)), np.float32)
        self._first = np.ones(num_robots, dtype=bool)

    @property
    def parameters(self) -> int:
        """Trainable parameters of the exported policy."""
        return int(self.description["parameters"] or 0)

    def reset(self, ids: Array) -> None:
        """Start a new episode for the robots `ids`."""
        self._last[ids] = 0.0
        self._first[ids] = True

    def act(self, observation: "ControlObservation") -> Array:
        """(N, A) float32 actions for one control step."""
        if observation.policy.shape != self._shape:
            raise ValueError(
                f"policy {self.name} controls observations of shape {self._shape}, got "
                f"{observation.policy.shape}"
            )
        inputs = self._inputs(self._terms(observation.policy))
        self._first[:] = False
        raw = np.concatenate(
            [self._session.run(None, {self._input: row[None]})[0] for row in inputs]
        )
        targets = np.empty_like(raw, dtype=np.float64)
        # The robot takes targets by motor; the simulator by joint of the policy, in action units.
        targets[:, self._motors] = self._motor_targets(raw)
        action = (targets - self._default) / self._scale
        return np.clip(action, -self._limit, self._limit).astype(np.float32)

    @abstractmethod
    def _read(self) -> None:
        """Read the runtime's files."""

    @abstractmethod
    def _inputs(self, terms: dict[str, Array]) -> Array:
        """Terms (N, ...) of this step, without history -> the model's inputs (N, n * K)."""

    @abstractmethod
    def _motor_targets(self, raw: Array) -> Array:
        """The model's output (N, A) -> targets in rad (N, A) by motor; keeps the last action."""

    def _terms(self, obs: Array) -> dict[str, Array]:
        """What the robot measures, and the joystick: joints by motor, the last action as kept."""
        parts = {name: obs[:, span] for name, span in self._places.items()}
        joint_pos = np.arctan2(parts["sin_joint_pos"], parts["cos_joint_pos"])
        return {
            GYRO: parts["base_ang_vel_body"],
            GRAVITY: parts["projected_gravity"],
            VELOCITY: parts["command"][:, list(VELOCITIES)],
            JOINT_POS: joint_pos[:, self._motors],
            JOINT_VEL: parts["joint_vel"][:, self._motors],
            LAST: self._last.copy(),
        }

    def _file(self, name: str) -> bytes:
        """A file of the export; ValueError if it lacks or is not the one that was exported."""
        path = self._folder / name
        digest = self.description["files"].get(name)
        if digest is None or not path.is_file():
            raise ValueError(f"{self._folder} holds no {name}; export it with --for {self.runtime}")
        if sha256_file(path) != digest:
            raise ValueError(f"{path} is not the file that was exported; export it again")
        return path.read_bytes()

    def _open(self, content: bytes) -> None:
        """Open the ONNX model on one thread."""
        try:
            import onnxruntime
        except ImportError:
            raise ValueError(
                "an exported policy needs onnxruntime: pip install onnxruntime"
            ) from None
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        providers = ["CPUExecutionProvider"]
        self._session: Any = onnxruntime.InferenceSession(content, options, providers=providers)
        self._input = self._session.get_inputs()[0].name


class UnitreePolicy(RuntimePolicy):
    """unitree_rl_lab's files: a history for each term, filled with the first observation."""

    runtime = unitree_rl_lab.RUNTIME

    def _read(self) -> None:
        deploy = read_yaml(self._file(unitree_rl_lab.DEPLOY), unitree_rl_lab.DEPLOY)
        self._open(self._file(unitree_rl_lab.MODEL))
        self._map = np.array(deploy["joint_ids_map"])
        self._offset_q = np.array(deploy["default_joint_pos"], np.float32)
        self._ranges = np.array([*deploy["commands"]["base_velocity"]["ranges"].values()][:3])
        self._action = deploy["actions"]["JointPositionAction"]
        self._observations: dict[str, Any] = deploy["observations"]
        names = {theirs: ours for ours, theirs in unitree_rl_lab.TERMS.items()}
        self._names = {theirs: names[theirs] for theirs in self._observations}
        self._history: dict[str, Array] = {}

    def _inputs(self, terms: dict[str, Array]) -> Array:
        low, high = self._ranges.T.astype(np.float32)
        terms[VELOCITY] = np.clip(terms[VELOCITY], low, high)
        terms[JOINT_POS] = terms[JOINT_POS][:, self._map] - self._offset_q
        terms[JOINT_VEL] = terms[JOINT_VEL][:, self._map]
        parts: list[Array] = []
        for theirs, entry in self._observations.items():
            value = (terms[self._names[theirs]] * entry["scale"]).astype(np.float32)
            steps = entry["history_length"]
            filled = np.repeat(value[:, None], steps, axis=1)
            kept = self._history.get(theirs, filled)
            kept = np.where(self._first[:, None, None], filled, kept)
            kept = np.concatenate([kept[:, 1:], value[:, None]], axis=1)
            self._history[theirs] = kept
            parts.append(kept.reshape(self.num_robots, -1))
        return np.concatenate(parts, axis=1)

    def _motor_targets(self, raw: Array) -> Array:
        self._last = raw
        low, high = np.transpose(self._action["clip"])
        targets = np.clip(raw * self._action["scale"] + self._action["offset"], low, high)
        by_motor = np.empty_like(targets)
        by_motor[:, self._map] = targets
        return by_motor


class RLSarPolicy(RuntimePolicy):
    """rl_sar's files: a history of whole frames, filled with zeros."""

    runtime = rl_sar.RUNTIME

    def _read(self) -> None:
        policy = f"{self._robot}/{rl_sar.POLICY}"
        folder = f"{rl_sar.RUNTIME}/{policy}"
        self._config = read_yaml(self._file(f"{folder}/config.yaml"), "config.yaml")[policy]
        self._open(self._file(f"{folder}/{self._config['model_name']}"))
        self._map = np.array(self._config["joint_mapping"])
        names = {theirs: ours for ours, theirs in rl_sar.TERMS.items()}
        self._names = {theirs: names[theirs] for theirs in self._config["observations"]}
        self._ages = list(self._config["observations_history"]) or [0]
        self._frames: Array = np.zeros((0, 0, 0), np.float32)

    def _inputs(self, terms: dict[str, Array]) -> Array:
        config = self._config
        terms[JOINT_POS] = terms[JOINT_POS][:, self._map] - config["default_dof_pos"]
        terms[JOINT_VEL] = terms[JOINT_VEL][:, self._map]
        scales = {
            GYRO: config["ang_vel_scale"],
            VELOCITY: np.array(config["commands_scale"]),
            JOINT_POS: config["dof_pos_scale"],
            JOINT_VEL: config["dof_vel_scale"],
        }
        parts = [terms[ours] * scales.get(ours, 1.0) for ours in self._names.values()]
        frame = np.concatenate(parts, axis=1).astype(np.float32)
        frame = np.clip(frame, -config["clip_obs"], config["clip_obs"])
        if not self._frames.size:
            self._frames = np.zeros((len(frame), max(self._ages) + 1, frame.shape[1]), np.float32)
        self._frames[self._first] = 0.0
        self._frames = np.concatenate([frame[:, None], self._frames[:, :-1]], axis=1)
        return self._frames[:, self._ages].reshape(len(frame), -1)

    def _motor_targets(self, raw: Array) -> Array:
        config = self._config
        low, high = (np.array(config[f"clip_actions_{end}"]) for end in ("lower", "upper"))
        self._last = np.clip(raw, low, high).astype(np.float32)
        by_motor = np.empty(raw.shape)
        by_motor[:, self._map] = self._last * config["action_scale"] + config["default_dof_pos"]
        return by_motor
