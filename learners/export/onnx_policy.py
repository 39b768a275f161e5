"""An exported policy in a robot's control loop, by ONNX Runtime.

Needs NumPy and onnxruntime only: no torch and no other file of this project.
"""

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from gaitforge.learners.control.control import ControlObservation

Array = np.ndarray

MODEL = "policy.onnx"
DESCRIPTION = "policy.json"
FORMAT = "gaitforge-policy"
FORMAT_VERSION = 1
KEPT_ACTION = "state_last_action"
"""Name of the last action in the state, if the policy keeps it."""


class OnnxPolicy:
    """An exported policy for `num_robots` robots, on one thread.

    A return-conditioned policy is asked for `return_target` (1.0 = the expert's return) and, if it
    knows the return-to-go, subtracts the rewards. Actions are clipped to +-`action_limit`, also in
    what a policy remembers of its last one.

    Raises ValueError for a missing or damaged export, missing
    onnxruntime, or a value outside its range.
    """

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
        if not np.isfinite(return_target):
            raise ValueError(f"return_target must be a finite number, got {return_target}")
        self.name = name
        self.num_robots = num_robots
        self.description = read_description(folder)
        self._session = _open_session(Path(folder), self.description["files"].get(MODEL))
        self._obs_dim = int(self.description["observation"]["dim"])
        self._act_dim = int(self.description["action"]["dim"])
        self._batch = int(self.description["batch_size"])
        self._limit = action_limit
        groups = -(-num_robots // self._batch)
        self._groups = [_Group(self._session, self.description) for _ in range(groups)]
        returns = self.description["return_to_go"] or {"expert_return": 0.0, "zero_return": 0.0}
        zero = returns["zero_return"]
        self._target = np.float32(zero + return_target * (returns["expert_return"] - zero))
        self._remaining = np.full(num_robots, self._target, dtype=np.float32)
        asked = np.full(num_robots, return_target, dtype=np.float32)
        targets = {"return_to_go": self._remaining, "target": asked}
        self._targets = {name: targets[name] for name in _target_names(self.description)}
        self._first = np.ones(num_robots, dtype=bool)

    @property
    def parameters(self) -> int:
        """Trainable parameters of the exported policy."""
        return int(self.description["parameters"] or 0)

    def reset(self, ids: np.ndarray) -> None:
        """Start a new episode for the robots `ids`."""
        ids = np.asarray(ids, dtype=np.int64)
        self._remaining[ids] = self._target
        self._first[ids] = True
        for robot in ids.tolist():
            self._groups[robot // self._batch].reset(robot % self._batch)

    def act(self, observation: "ControlObservation") -> np.ndarray:
        """(N, A) float32 actions for one control step."""
        expected = (self.num_robots, self._obs_dim)
        if observation.policy.shape != expected:
            raise ValueError(
                f"policy {self.name} controls observations of shape {expected}, got "
                f"{observation.policy.shape}"
            )
        self._remaining -= np.where(self._first, 0.0, observation.reward).astype(np.float32)
        self._first[:] = False
        actions = np.empty((self.num_robots, self._act_dim), dtype=np.float32)
        for index, group in enumerate(self._groups):
            rows = slice(index * self._batch, (index + 1) * self._batch)
            targets = {name: values[rows] for name, values in self._targets.items()}
            actions[rows] = group.step(observation.policy[rows], targets, self._limit)
        return actions

    def check_known_answers(self) -> float:
        """The largest error on the export's examples, relative to actions above 1.

        Raises ValueError if it exceeds the tolerance.
        """
        cases = self.description["known_answers"]
        group = _Group(self._session, self.description)
        worst = 0.0
        for number, obs in enumerate(cases["observation"]):
            expected = np.array(cases["action"][number])
            targets = {name: np.array(cases[name][number]) for name in self._targets}
            got = group.step(np.array(obs), targets)
            error = np.abs(got - expected) / np.maximum(1.0, np.abs(expected))
            worst = max(worst, float(error.max()))
        if not worst <= cases["tolerance"]:
            raise ValueError(f"the actions differ from the known answers by {worst:.1e}")
        return worst


def read_description(folder: Path | str) -> dict[str, Any]:
    """The JSON of an exported policy; ValueError if there is none that can be read."""
    path = Path(folder) / DESCRIPTION
    try:
        description = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"no exported policy in {folder}: it holds no {DESCRIPTION}") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} cannot be read as JSON: {error}") from None
    readable = isinstance(description, dict) and description.get("format") == FORMAT
    if not readable or description.get("format_version") != FORMAT_VERSION:
        raise ValueError(f"{path} describes no policy of this program's format {FORMAT_VERSION}")
    return description


def is_exported_policy(folder: Path | str) -> bool:
    """Whether a folder holds an exported policy, not a training run."""
    return (Path(folder) / DESCRIPTION).is_file()


def _open_session(folder: Path, sha256: str | None) -> Any:
    try:
        import onnxruntime
    except ImportError:
        raise ValueError("an exported policy needs onnxruntime: pip install onnxruntime") from None
    path = folder / MODEL
    if not path.is_file():
        raise ValueError(f"{folder} holds no {MODEL}; export it with the format onnx")
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != sha256:
        raise ValueError(f"{path} is not the file that {DESCRIPTION} describes; export it again")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def _target_names(description: dict[str, Any]) -> list[str]:
    """Names of the model's inputs by which a return-conditioned policy is asked."""
    return [name for name in ("return_to_go", "target") if description.get(name) is not None]


class _Group:
    """A batch of robots, as large as the model takes, with buffers bound to the model.

    Two sets of state buffers are read and written in turn; state that a step may overwrite has one.
    """

    def __init__(self, session: Any, description: dict[str, Any]) -> None:
        batch = description["batch_size"]
        self._run = session.run_with_iobinding
        self._observation: Array = np.zeros((batch, description["observation"]["dim"]), np.float32)
        self._targets = {name: np.zeros(batch, np.float32) for name in _target_names(description)}
        self._action: Array = np.zeros((batch, description["action"]["dim"]), np.float32)
        self._state = description["state"]
        now = [np.full(s["shape"], float(s["fill"]), dtype=s["dtype"]) for s in self._state]
        after = [
            array if entry["in_place"] else array.copy()
            for entry, array in zip(self._state, now, strict=True)
        ]
        self._buffers = [now, after]
        turns = ((now, after), (after, now))
        self._bindings = [self._bind(session, *buffers) for buffers in turns]

    def _bind(self, session: Any, now: list[Array], after: list[Array]) -> Any:
        inputs = {"observation": self._observation, **self._targets}
        outputs = {"action": self._action}
        for entry, current, following in zip(self._state, now, after, strict=True):
            inputs[entry["input"]] = current
            outputs[entry["output"]] = following
        binding = session.io_binding()
        for bind, arrays in ((binding.bind_input, inputs), (binding.bind_output, outputs)):
            for name, array in arrays.items():
                bind(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
        return binding

    def step(
        self, observation: np.ndarray, targets: dict[str, Array], limit: float = float("inf")
    ) -> np.ndarray:
        """(b, Do) and (b,) each -> (b, A) for up to B robots, a view of the next step's memory."""
        rows = len(observation)
        self._observation[:rows] = observation
        for name, values in targets.items():
            self._targets[name][:rows] = values
        self._run(self._bindings[0])
        self._bindings.reverse()
        self._buffers.reverse()
        if limit < float("inf"):
            np.clip(self._action, -limit, limit, out=self._action)
            for entry, array in zip(self._state, self._buffers[0], strict=True):
                if entry["input"] == KEPT_ACTION:
                    np.clip(array, -limit, limit, out=array)
        return self._action[:rows]

    def reset(self, row: int) -> None:
        """Reset one robot's state; shared state, such as a clock, stays."""
        for entry, array in zip(self._state, self._buffers[0], strict=True):
            if entry["batch_axis"] is not None:
                robots = np.moveaxis(array, entry["batch_axis"], 0)
                width = len(robots) // len(self._observation)
                robots[row * width : (row + 1) * width] = float(entry["fill"])
