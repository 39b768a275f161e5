"""The tracking task as dm_control runs it: observation, reward and early termination are its own.

This is the reference. `batch` computes the same task for many humanoids at once, for training.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from collectors.humanoid.clips.reference import clip_lengths
from collectors.humanoid.clips.snippets import Snippet
from collectors.humanoid.observation import OBS_DIM, OBSERVATION_SLICES, REF_STEPS
from collectors.humanoid.optional import load_module, quiet_loading
from collectors.humanoid.walker import PHYSICS_DT_S, PREFIX, make_arena, walker_class

TERMINATION_ERROR = 0.3
"""An episode ends early beyond it: half the mean error of joint angles (rad) plus half that of body
positions (m), MoCapAct's threshold."""


@dataclass(frozen=True)
class TrackingStep:
    """What a control step came to.

    Attributes:
        observation: (2868,) float32 after it.
        reward: CoMic's, at most 1.45.
        terminated: ended early, for the error was too large; truncated: the snippet is over.
    """

    observation: np.ndarray
    reward: float
    terminated: bool
    truncated: bool


class TrackingEnvironment:
    """One humanoid that tracks snippets of a reference file.

    Args:
        reference: the file; snippets: those that episodes may track.

    Raises:
        ValueError: no dm_control, no such file or clip, or a snippet beyond its clip's end.
    """

    simulator = "dm_control"

    def __init__(self, reference: Path, snippets: Sequence[Snippet]):
        self.snippets = tuple(snippets)
        _check_snippets(reference, self.snippets)
        types = load_module("dm_control.locomotion.tasks.reference_pose.types")
        clips = types.ClipCollection(
            ids=[snippet.clip for snippet in self.snippets],
            start_steps=[snippet.start for snippet in self.snippets],
            end_steps=[snippet.end for snippet in self.snippets],
        )
        self.version = f"{version('dm-control')}, mujoco {version('mujoco')}"
        with quiet_loading():
            self._task, arena = _make_task(str(reference), clips)
        _choose_observables(arena)
        self._env: Any = load_module("dm_control.composer").Environment(
            self._task, time_limit=float("inf"), random_state=0
        )

    def reset(self, snippet: int, frame: int | None = None) -> np.ndarray:
        """Start an episode on a snippet, by its index, at one of the clip's frames.

        Returns:
            (2868,) float32, the observation.

        Raises:
            ValueError: a frame from which no step is left; the snippet's first is the default.
        """
        tracked = self.snippets[snippet]
        frame = tracked.start if frame is None else frame
        if frame < tracked.start or tracked.steps_from(frame) < 1:
            raise ValueError(f"snippet {tracked.name} has no episode that starts at frame {frame}")
        self._task.chosen = snippet, frame
        with quiet_loading():
            return _flat(self._env.reset().observation)

    def step(self, action: np.ndarray) -> TrackingStep:
        """Advance by 0.03 s under an action (56,) in [-1, 1]; values beyond are clipped."""
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

    def observation_spec(self) -> dict[str, Any]:
        """dm_control's own: name, with "walker/" before it -> shape and type."""
        return dict(self._env.observation_spec())

    def state(self) -> tuple[np.ndarray, np.ndarray]:
        """qpos (63,) and qvel (62,) now."""
        data = self._env.physics.data
        return data.qpos.copy(), data.qvel.copy()

    def close(self) -> None:
        """Free the simulator."""
        self._env.close()


@cache
def _task_class() -> Any:
    tracking = load_module("dm_control.locomotion.tasks.reference_pose.tracking")

    class ChosenStart(tracking.MultiClipMocapTracking):
        """dm_control's task, which draws its starts, with the start of our choice."""

        chosen: tuple[int, int] = (0, 0)

        def _get_clip_to_track(self, random_state: np.random.RandomState) -> None:
            # `PlaybackTask` of dm_control replaces the same method for the same purpose.
            self._possible_starts, self._start_probabilities = [self.chosen], [1.0]
            super()._get_clip_to_track(random_state)

    return ChosenStart


def _make_task(reference: str, clips: Any) -> tuple[Any, Any]:
    arena = make_arena()
    task = _task_class()(
        walker=walker_class(),
        arena=arena,
        ref_path=reference,
        ref_steps=REF_STEPS,
        dataset=clips,
        termination_error_threshold=TERMINATION_ERROR,
        min_steps=1,
        reward_type="comic",
        physics_timestep=PHYSICS_DT_S,
    )
    return task, arena


def _choose_observables(arena: Any) -> None:
    for entity in arena.iter_entities():
        for name, observable in entity.observables.as_dict().items():
            observable.enabled = name.removeprefix(PREFIX) in OBSERVATION_SLICES


def _flat(observation: dict[str, np.ndarray]) -> np.ndarray:
    flat = np.empty(OBS_DIM, dtype=np.float32)
    for name, (start, stop) in OBSERVATION_SLICES.items():
        flat[start:stop] = np.ravel(observation[PREFIX + name])
    return flat


def _check_snippets(reference: Path, snippets: Sequence[Snippet]) -> None:
    if not snippets:
        raise ValueError("the tracking environment needs at least one snippet")
    frames = clip_lengths(reference)
    for snippet in snippets:
        if snippet.clip not in frames:
            raise ValueError(f"{reference} has no clip {snippet.clip}")
        if snippet.end >= frames[snippet.clip]:
            raise ValueError(
                f"snippet {snippet.name} ends behind the last frame of its clip, "
                f"{frames[snippet.clip] - 1}"
            )
