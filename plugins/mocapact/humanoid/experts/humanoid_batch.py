"""The tracking task for many humanoids at once, on bare MuJoCo, for training.

States, rewards and ends equal those of `environment` bit for bit, with the solver's warm start;
`mujoco.rollout` forgets it (positions differ by 1e-6 after ten steps) and is no faster.
"""

import copy
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import mujoco
import numpy as np

from gaitforge.plugins.mocapact.humanoid.clips.reference import ReferenceClip
from gaitforge.plugins.mocapact.humanoid.clips.snippets import Snippet
from gaitforge.plugins.mocapact.humanoid.environment import TERMINATION_ERROR
from gaitforge.plugins.mocapact.humanoid.experts.features import BatchState, batch_features
from gaitforge.plugins.mocapact.humanoid.observation import N_JOINTS
from gaitforge.plugins.mocapact.humanoid.rewards import comic_reward, tracking_error
from gaitforge.plugins.mocapact.humanoid.walker import (
    SUBSTEPS,
    CmuHumanoid,
    TrackedPoses,
    read_pose,
)

_STATE = int(mujoco.mjtState.mjSTATE_INTEGRATION)
_NO_ACTUATION = int(mujoco.mjtDisableBit.mjDSBL_ACTUATION)


@dataclass(frozen=True)
class HumanoidStep:
    """Outcome of a control step, each (N,); terminated: error beyond `TERMINATION_ERROR`."""

    reward: np.ndarray
    error: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray


class TrackingBatch:
    """N humanoids that track one snippet of a clip, each at its own frame."""

    def __init__(
        self,
        humanoid: CmuHumanoid,
        clip: ReferenceClip,
        snippet: Snippet,
        number: int,
        threads: int,
    ):
        self.snippet = snippet
        self.number = number
        self._humanoid = humanoid
        self._reference = clip.poses
        self._starts = _start_states(humanoid, clip.poses.at(slice(0, snippet.last_frame + 1)))
        self._state = np.empty((number, self._starts.shape[1]))
        self._activation = np.empty((number, N_JOINTS))
        self._poses = TrackedPoses.empty(humanoid, number)
        self._data = [mujoco.MjData(humanoid.model) for _ in range(threads)]
        self._pool = ThreadPoolExecutor(threads)
        self._shares = np.array_split(np.arange(number), threads)
        self.frame = np.empty(number, dtype=np.int64)
        self.reset(np.arange(number), np.full(number, snippet.start))

    def reset(self, ids: np.ndarray, frames: np.ndarray) -> None:
        """Put humanoids at frames of the clip, motors at rest."""
        self._state[ids] = self._starts[frames]
        self._activation[ids] = 0.0
        for row, frame in zip(ids.tolist(), frames.tolist(), strict=True):
            data = self._data[0]
            mujoco.mj_setState(self._humanoid.model, data, self._state[row], _STATE)
            read_pose(self._humanoid, data, self._poses, row)
            self.frame[row] = frame

    def step(self, action: np.ndarray) -> HumanoidStep:
        """Advance all by 0.03 s under actions (N, 56), clipped to [-1, 1].

        A humanoid at the snippet's end stays there until it is reset.
        """
        control = np.clip(action, -1.0, 1.0).astype(np.float64)
        controls = [control] * len(self._data)
        list(self._pool.map(self._advance, self._data, self._shares, controls))
        np.minimum(self.frame + 1, self.snippet.last_frame, out=self.frame)
        reference = self._reference.at(self.frame)
        error = tracking_error(self._poses, reference)
        terminated = error > TERMINATION_ERROR
        return HumanoidStep(
            reward=comic_reward(self._poses, reference, error),
            error=error,
            terminated=terminated,
            truncated=(self.frame >= self.snippet.last_frame) & ~terminated,
        )

    def features(self) -> np.ndarray:
        """(N, FEATURE_DIM) float32; see `features`."""
        start = self.snippet.start
        end = self.snippet.end
        clip_time = (self.frame - start) / (end - start)
        state = BatchState(self._poses, self._activation, self.frame, clip_time)
        return batch_features(self._humanoid, state, self._reference)

    def positions(self) -> tuple[np.ndarray, np.ndarray]:
        """The present qpos (N, 63) and qvel (N, 62)."""
        return self._poses.qpos.copy(), self._poses.qvel.copy()

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown()

    def _advance(self, data: mujoco.MjData, rows: np.ndarray, control: np.ndarray) -> None:
        model = self._humanoid.model
        for row in rows.tolist():
            mujoco.mj_setState(model, data, self._state[row], _STATE)
            data.ctrl[:] = control[row]
            mujoco.mj_step(model, data, SUBSTEPS)
            mujoco.mj_getState(model, data, self._state[row], _STATE)
            self._activation[row] = data.act
            read_pose(self._humanoid, data, self._poses, row)


def _start_states(humanoid: CmuHumanoid, frames: TrackedPoses) -> np.ndarray:
    """(T, S) integration states; as in dm_control, warm-started without actuation."""
    resting = copy.copy(humanoid.model)
    resting.opt.disableflags |= _NO_ACTUATION
    data = mujoco.MjData(resting)
    states = np.empty((len(frames), mujoco.mj_stateSize(resting, _STATE)))
    for row in range(len(frames)):
        mujoco.mj_resetData(resting, data)
        data.qpos[:] = frames.qpos[row]
        data.qvel[:] = frames.qvel[row]
        mujoco.mj_forward(resting, data)
        mujoco.mj_getState(resting, data, states[row], _STATE)
    return states
