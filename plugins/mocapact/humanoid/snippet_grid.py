"""The plan of episodes, and a store's schema, arrays and catalog."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np

from gaitforge.common.limits import Range, Whole, check_ranges
from gaitforge.datasets import Field, Schema
from gaitforge.plugins.mocapact.humanoid.clips.snippets import Snippet
from gaitforge.plugins.mocapact.humanoid.observation import (
    CONTROL_DT_S,
    JOINT_NAMES,
    N_JOINTS,
    OBS_DIM,
    OBSERVATION_SLICES,
    REF_STEPS,
)
from gaitforge.plugins.mocapact.humanoid.rollout import ClipEpisode, ClipExpertPolicy, ClipResult

ROBOT = "cmu-humanoid"
TERRAIN = "flat"
SKILL = "tracking"


MOST_EPISODES = 1 << 12
"""Most episodes of a snippet in one part: their ids' last 12 bits number them."""


@dataclass(frozen=True)
class SnippetGrid:
    """A dataset's episodes; each snippet is one part.

    Attributes:
        snippets: their names, CLIP-START-END, each once.
        start_rollouts: episodes per snippet from its start; random_rollouts: from random frames.
        action_noise: std of the noise on executed actions, as in MoCapAct; seed: random seed.
    """

    snippets: tuple[str, ...]
    start_rollouts: Whole = 16
    random_rollouts: Whole = 16
    action_noise: Annotated[float, Range(0)] = 0.1
    seed: Whole = 0

    def __post_init__(self) -> None:
        parsed = self.parsed()
        if not parsed or len(set(parsed)) != len(parsed):
            raise ValueError("a plan needs at least one snippet, each of them once")
        check_ranges(self)
        if self.episodes < 1:
            raise ValueError("need start_rollouts and random_rollouts, together at least 1, got 0")
        if self.episodes > MOST_EPISODES:
            raise ValueError(
                f"start_rollouts and random_rollouts must be at most {MOST_EPISODES:,} together, "
                f"got {self.episodes:,}; use several seeds"
            )

    @property
    def episodes(self) -> int:
        """Episodes per snippet."""
        return self.start_rollouts + self.random_rollouts

    def parsed(self) -> list[Snippet]:
        """The snippets."""
        return [Snippet.parse(name) for name in self.snippets]

    def episode_specs(self, snippet: Snippet, unique: int) -> list[ClipEpisode]:
        """The episodes of one snippet by seed and name; `unique` is added to their indices."""
        name = [ord(letter) for letter in snippet.name]
        rng = np.random.default_rng([0x40CA, self.seed, *name])
        seeds = rng.integers(2**62, size=self.episodes)
        frames = rng.choice(np.array(snippet.random_starts()), self.random_rollouts)
        starts = [snippet.start] * self.start_rollouts + frames.tolist()
        return [
            ClipEpisode(unique + i, 0, frame, i < self.start_rollouts, self.action_noise, int(seed))
            for i, (frame, seed) in enumerate(zip(starts, seeds, strict=True))
        ]

    def steps_at_most(self, snippet: Snippet) -> int:
        """Most steps of a snippet's part."""
        return snippet.steps * self.episodes


def humanoid_schema(has_value: bool) -> Schema:
    """The store's schema; with the field `value` where the expert has a critic."""
    joints = {name: (i, i + 1) for i, name in enumerate(JOINT_NAMES)}
    text = "observation before the step"
    obs = Field("obs", (OBS_DIM,), "float32", "SI", text, OBSERVATION_SLICES)
    unit = "1 (-1 and 1 are the ends of the joint's range)"
    text = "joint position targets as executed, action noise included"
    action = Field("action", (N_JOINTS,), "float32", unit, text, joints)
    text = "joint position targets of the expert, before action noise"
    mean_action = replace(action, name="mean_action", description=text)
    text = "CoMic's tracking reward of the step, at most 1.45"
    fields = [obs, action, mean_action, Field("reward", description=text)]
    if has_value:
        text = "discounted return that the expert's critic expects before the step"
        fields.append(Field("value", description=text))
    text = "observation after the episode's last step"
    fields.append(replace(obs, name="final_obs", description=text, per="episode"))
    return Schema(
        fields=tuple(fields),
        control_dt_s=CONTROL_DT_S,
        robot=ROBOT,
        attributes={"joint_names": list(JOINT_NAMES), "ref_steps": list(REF_STEPS)},
    )


def part_catalog(
    results: Sequence[ClipResult],
    snippet: Snippet,
    simulator: tuple[str, str],
    expert: ClipExpertPolicy,
) -> dict[str, list[Any]]:
    """Catalog columns of a part, one row per episode; simulator: name and version."""
    rows = [
        {
            "episode": result.spec.index,
            "length": result.length,
            "seed": result.spec.seed,
            "terrain": TERRAIN,
            "level": 0,
            "skill": SKILL,
            "robot": ROBOT,
            "simulator": simulator[0],
            "simulator_version": simulator[1],
            "expert": expert.name,
            "expert_hash": expert.hash,
            "return": result.episode_return,
            "success": not result.terminated,
            "terminated": result.terminated,
            "truncated": not result.terminated,
            "clip": snippet.clip,
            "snippet": snippet.name,
            "snippet_start": snippet.start,
            "snippet_end": snippet.end,
            "start_step": result.spec.frame,
            "random_start": not result.spec.at_start,
            "action_noise": result.spec.action_noise,
            "possible_length": result.possible,
            "normalised_return": result.normalised_return,
            "normalised_length": result.normalised_length,
        }
        for result in results
    ]
    return {name: [row[name] for row in rows] for name in rows[0]}
