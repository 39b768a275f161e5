"""An export's C code in the control loop of N robots: the runtime `c` of `gaitforge evaluate`."""

import ctypes
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gaitforge.learners.export.onnx_policy import DESCRIPTION, read_description
from gaitforge.plugins.robot_runtime.c_code.compiling import library
from gaitforge.plugins.robot_runtime.c_code.policy_code import source
from gaitforge.plugins.robot_runtime.c_code.writing import BLOB, HEADER, SOURCE

if TYPE_CHECKING:
    from gaitforge.learners.control.control import ControlObservation

_BATCH = "batch.c"
_OK = 0
_ALIGNED = 64


class CPolicy:
    """An exported policy's C code for `num_robots` robots, compiled here.

    A policy that takes a return is asked for `return_target` (1.0 = the expert's return), and
    subtracts the rewards if it knows the return-to-go. Actions are clipped to +-`action_limit`,
    also in what a policy remembers of its last one, and to the C code's own limit. Those of a robot
    whose observation or action is not finite are NaN.

    Raises:
        ValueError: a missing or damaged export, one without C code, no compiler, C code whose
            `policy_check` fails, or a value outside its range.
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
        self._target = ctypes.c_float(return_target)
        self._obs_dim = int(self.description["observation"]["dim"])
        self._act_dim = int(self.description["action"]["dim"])
        contents = _checked_contents(Path(folder), self.description)
        self._weights = _weights(contents.pop(BLOB))
        contents[_BATCH] = source(_BATCH).encode()
        self._library = library(contents, (SOURCE, _BATCH), ("-DPOLICY_BLOB",))
        self._library.batch_state_bytes.restype = ctypes.c_int64
        self._states = _aligned_bytes(num_robots * self._library.batch_state_bytes())
        # Buffers with their addresses once: to find them takes as long as half a step of FCNet.
        self._obs = np.zeros((num_robots, self._obs_dim), np.float32)
        self._rewards = np.zeros(num_robots, np.float32)
        self._actions = np.zeros((num_robots, self._act_dim), np.float32)
        self._step = self._library.batch_act
        inputs = ctypes.c_int64(num_robots), _place(self._obs), _place(self._rewards)
        limit = ctypes.c_float(action_limit)
        self._arguments = _place(self._states), *inputs, limit, _place(self._actions)
        self._check()
        self.reset(np.arange(num_robots))

    @property
    def parameters(self) -> int:
        """Trainable parameters of the exported policy."""
        return int(self.description["parameters"] or 0)

    def reset(self, ids: np.ndarray) -> None:
        """Start a new episode for the robots `ids`.

        Raises:
            IndexError: a robot that is not there.
        """
        robots = np.arange(self.num_robots, dtype=np.int64)[np.asarray(ids, dtype=np.int64)]
        count = ctypes.c_int64(len(robots))
        self._library.batch_reset(_place(self._states), _place(robots), count, self._target)

    def act(self, observation: "ControlObservation") -> np.ndarray:
        """(N, A) float32 actions for one control step."""
        expected = (self.num_robots, self._obs_dim)
        if observation.policy.shape != expected:
            raise ValueError(
                f"policy {self.name} controls observations of shape {expected}, got "
                f"{observation.policy.shape}"
            )
        self._obs[:] = observation.policy
        self._rewards[:] = observation.reward
        self._step(*self._arguments)
        return self._actions.copy()

    def check_known_answers(self) -> float:
        """The largest error of the C code's own known answers; every robot starts a new episode.

        Raises:
            ValueError: an answer or a weight is wrong.
        """
        error = self._check()
        self.reset(np.arange(self.num_robots))
        return error

    def _check(self) -> float:
        error = ctypes.c_float()
        size = ctypes.c_size_t(self._weights.size)
        code = self._library.policy_load(_place(self._weights), size)
        if code == _OK:
            code = self._library.policy_check(_place(self._states), ctypes.byref(error))
        if code != _OK:
            raise ValueError(
                f"the C code of {self.name} does not give its known answers (policy_check gives "
                f"{code}); export it again"
            )
        return error.value


def _checked_contents(folder: Path, description: Mapping[str, Any]) -> dict[str, bytes]:
    """The C files; ValueError if one lacks, or is not the one that the description names."""
    contents = {}
    for name in (HEADER, SOURCE, BLOB):
        path = folder / name
        if name not in description["files"] or not path.is_file():
            raise ValueError(f"{folder} holds no {name}; export it with the format c")
        contents[name] = path.read_bytes()
        if sha256(contents[name]).hexdigest() != description["files"][name]:
            raise ValueError(
                f"{path} is not the file that {DESCRIPTION} describes; export it again"
            )
    return contents


def _aligned_bytes(count: int) -> np.ndarray:
    """(count,) zeros at a multiple of 64 bytes."""
    memory = np.zeros(count + _ALIGNED, np.uint8)
    first = -memory.ctypes.data % _ALIGNED
    return memory[first : first + count]


def _weights(blob: bytes) -> np.ndarray:
    """The blob's bytes; the weights, after its 16 of head, begin at a multiple of 64 bytes."""
    memory = _aligned_bytes(len(blob) + _ALIGNED)[_ALIGNED - 16 :][: len(blob)]
    memory[:] = np.frombuffer(blob, np.uint8)
    return memory


def _place(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)
