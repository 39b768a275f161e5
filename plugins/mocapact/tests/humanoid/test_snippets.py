"""Snippets cover their clips and survive being named."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gaitforge.plugins.mocapact.humanoid.clips.snippets import (
    MIN_STEPS,
    Snippet,
    cut_clip,
    whole_clip,
)
from gaitforge.plugins.mocapact.humanoid.snippet_grid import MOST_EPISODES, SnippetGrid
from gaitforge.plugins.mocapact.task import HumanoidPlan


@given(st.integers(7, 900), st.integers(6, 200), st.data())
def test_a_cut_clip_is_covered_to_its_last_frame(
    frames: int, length: int, data: st.DataObject
) -> None:
    overlap = data.draw(st.integers(0, length - 1))
    snippets = cut_clip("clip", frames, length, overlap)
    assert snippets[0].start == 0
    assert snippets[-1].end == frames - 1
    for before, after in pairwise(snippets):
        assert before.start < after.start <= before.end
        assert before.end - after.start >= overlap
    assert all(s.end - s.start <= length for s in snippets)
    assert len(set(snippets)) == len(snippets)


@given(st.text("aZ09_", min_size=1, max_size=12), st.integers(0, 999), st.data())
def test_a_name_gives_the_snippet_back(clip: str, start: int, data: st.DataObject) -> None:
    snippet = Snippet(clip, start, start + data.draw(st.integers(6, 500)))
    assert Snippet.parse(snippet.name) == snippet


@given(st.integers(0, 50), st.integers(6, 300))
def test_random_starts_leave_enough_steps(start: int, length: int) -> None:
    snippet = Snippet("clip", start, start + length)
    starts = snippet.random_starts()
    assert starts[0] == start
    assert min(map(snippet.steps_from, starts)) == min(MIN_STEPS, snippet.steps)


def test_the_published_snippets_have_the_published_lengths() -> None:
    assert Snippet("CMU_002_01", 0, 35).steps == 30
    assert whole_clip("CMU_002_01", 96).steps == 90


@pytest.mark.parametrize("name", ["CMU_002_01", "clip-1", "-0-30", "clip-a-30", "clip-0-5"])
def test_other_names_are_refused_in_a_line(name: str) -> None:
    with pytest.raises(ValueError, match=r"is no snippet|needs start") as refusal:
        Snippet.parse(name)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(("length", "overlap"), [(5, 0), (20, 20), (20, -1)])
def test_impossible_cuts_are_refused(length: int, overlap: int) -> None:
    with pytest.raises(ValueError, match="0 <= overlap < length"):
        cut_clip("clip", 100, length, overlap)


def test_snippets_whose_names_begin_alike_have_ids_of_their_own(humanoid_reference: Path) -> None:
    names = ("step_00-5-25", "squat_00-0-20")
    every = {}
    for seed in range(3):
        grid = SnippetGrid(names, start_rollouts=1, random_rollouts=2, seed=seed)
        every |= HumanoidPlan(grid, str(humanoid_reference)).episode_ids()
    assert len(every) == 6
    firsts = np.array([ids.start for ids in every.values()])
    assert [f"{first >> 32:06x}" for first in firsts] == [name[:6] for name in every]
    assert (firsts % MOST_EPISODES == 0).all()
    assert len({int(first) % 2**32 for first in firsts}) == 6
    with pytest.raises(ValueError, match=r"at most 4,096 together"):
        SnippetGrid(names, start_rollouts=MOST_EPISODES, random_rollouts=1)
