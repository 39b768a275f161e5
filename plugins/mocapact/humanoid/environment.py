"""The tracking task with dm_control's own observation, reward and early termination.

`batch` computes the same task for many humanoids at once, for training.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from gaitforge.plugins.mocapact.humanoid import walker
from gaitforge.plugins.mocapact.humanoid.clips.reference import clip_lengths
from gaitforge.plugins.mocapact.humanoid.clips.snippets import Snippet
from gaitforge.plugins.mocapact.humanoid.observation import OBS_DIM, OBSERVATION_SLICES, REF_STEPS

TERMINATION_ERROR = 0.3
"""Ends an episode early (MoCapAct's threshold): half the mean error of joint angles (rad) plus half
that of body positions (m)."""


@dataclass(frozen=True)
class TrackingStep:
    """Outcome of a control step.

    Attributes:
        observation: (2868,) float32 after it; reward: CoMic's, at most 1.45.
        terminated: the error was too large; truncated: the snippet is over.
    """

    observation: np.ndarray
    reward: float
    terminated: bool
    truncated: bool


def installed_version() -> str:
    """The version of the simulation's packages.

    Raises:
        PackageNotFoundError: one of them is not installed.
    """
    return f"{version('dm-control')}, mujoco {version('mujoco')}"


class TrackingEnvironment:
    """A humanoid on snippets of a reference file; ValueError for a missing clip or package."""

    simulator = "dm_control"

    def __init__(self, reference: Path, snippets: Sequence[Snippet]):
        self.snippets = tuple(snippets)
        _check_snippets(reference, self.snippets)
        types = walker.load_mocapact("dm_control.locomotion.tasks.reference_pose.types")
        clips = types.ClipCollection(
            ids=[snippet.clip for snippet in self.snippets],
            start_steps=[snippet.start for snippet in self.snippets],
            end_steps=[snippet.end for snippet in self.snippets],
        )
        self.version = installed_version()
        with walker.quiet_loading():
            arena = walker.make_arena()
            self._task: Any = _task_class()(
                walker=walker.walker_class(),
                arena=arena,
                ref_path=str(reference),
                ref_steps=REF_STEPS,
                dataset=clips,
                termination_error_threshold=TERMINATION_ERROR,
                min_steps=1,
                reward_type="comic",
                physics_timestep=walker.PHYSICS_DT_S,
            )
        for entity in arena.iter_entities():
            for name, observable in entity.observables.as_dict().items():
                observable.enabled = name.removeprefix(walker.PREFIX) in OBSERVATION_SLICES
        self._env: Any = walker.load_mocapact("dm_control.composer").Environment(
            self._task, time_limit=float("inf"), random_state=0
        )

    def reset(self, snippet: int, frame: int | None = None) -> np.ndarray:
        """Start an episode at a frame of the clip, None for the snippet's first.

        Returns the observation (2868,) float32; ValueError for a frame from which no step is left.
        """
        tracked = self.snippets[snippet]
        frame = tracked.start if frame is None else frame
        if frame < tracked.start or tracked.steps_from(frame) < 1:
            raise ValueError(f"snippet {tracked.name} has no episode that starts at frame {frame}")
        self._task.chosen = snippet, frame
        with walker.quiet_loading():
            return _flat(self._env.reset().observation)

    def step(self, action: np.ndarray) -> TrackingStep:
        """Advance by 0.03 s under an action (56,), clipped to [-1, 1]."""
        result = self._env.step(np.clip(action.astype(np.float64), -1.0, 1.0))
        if result.first():
            raise ValueError("the episode was over, or none was started: reset the environment")
        terminated = result.discount == 0.0
        return TrackingStep(
            observation=_flat(result.observation),
            reward=float(np.squeeze(result.reward)),
            terminated=terminated,
            truncated=result.last() and not terminated,
        )

    def state(self) -> tuple[np.ndarray, np.ndarray]:
        """The present qpos (63,) and qvel (62,)."""
        data = self._env.physics.data
        return data.qpos.copy(), data.qvel.copy()

    def close(self) -> None:
        """Free the simulator."""
        self._env.close()


@cache
def _task_class() -> Any:
    tracking = walker.load_mocapact("dm_control.locomotion.tasks.reference_pose.tracking")

    class ChosenStart(tracking.MultiClipMocapTracking):
        """dm_control's task that starts at the frame `chosen`, not at a random one."""

        chosen: tuple[int, int] = (0, 0)

        def _get_clip_to_track(self, random_state: np.random.RandomState) -> None:
            # dm_control's `PlaybackTask` overrides the same method.
            self._possible_starts = [self.chosen]
            self._start_probabilities = [1.0]
            super()._get_clip_to_track(random_state)

    return ChosenStart


def _flat(observation: dict[str, np.ndarray]) -> np.ndarray:
    flat = np.empty(OBS_DIM, dtype=np.float32)
    for name, (start, stop) in OBSERVATION_SLICES.items():
        flat[start:stop] = np.ravel(observation[walker.PREFIX + name])
    return flat


def _check_snippets(reference: Path, snippets: Sequence[Snippet]) -> None:
    if not snippets:
        raise ValueError("the tracking environment needs at least one snippet")
    frames = clip_lengths(reference)
    for snippet in snippets:
        if snippet.clip not in frames:
            raise ValueError(f"{reference} has no clip {snippet.clip}")
        if snippet.end >= frames[snippet.clip]:
            last = frames[snippet.clip] - 1
            raise ValueError(f"snippet {snippet.name} ends after its clip's last frame, {last}")
