"""Clips of any name, or none, in MoCapAct's files: every episode keeps its own."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gaitforge.datasets import DatasetError, Selection, Store, open_store
from gaitforge.datasets.formats.transfer.exporting import export_selection
from gaitforge.datasets.formats.transfer.importing import import_source
from gaitforge.plugins.mocapact.format.mocapact_schema import MocapactSnippet, clip_name, clip_of
from gaitforge.plugins.mocapact.tests.format_cases import rollout_store
from gaitforge.plugins.mocapact.tests.formats.mocapact_files import (
    SMALL_WIDTHS,
    make_rollouts,
    write_file,
)
from tests.collectors.test_names_in_files import NAMES as FILE_NAMES
from tests.collectors.test_names_in_files import assert_nothing_outside
from tests.datasets.formats.format_stores import random_episodes
from tests.datasets.making import part_input, small_schema

NAMES = ("größe", "a/b", "a_b", "a%2Fb", "..", "", ".hidden", "two\nlines", "%", "a-1-2")


def store_of(path: Path, **columns: Sequence[Any]) -> Selection:
    """An episode for each value of the columns, each of another length and observation."""
    count = len(next(iter(columns.values())))
    given = part_input(range(1, count + 1))
    store = Store.create(path, small_schema())
    store.write_part("p", given["steps"], given["episodes"] | columns, given["per_episode"])
    return store.select()


def assert_kept(before: Selection, after: Selection, column: str) -> None:
    """Every episode of one is in the other, under its own name."""
    names = after.episodes().column(column).to_pylist()
    assert sorted(names) == sorted(before.episodes().column(column).to_pylist())
    places = {int(length): number for number, length in enumerate(after.lengths)}
    for number, length in enumerate(before.lengths):
        ours, theirs = before.episode(number), after.episode(places[int(length)])
        for name in before.store.schema.names():
            np.testing.assert_array_equal(theirs[name], ours[name])
        assert names[places[int(length)]] == before.episodes().column(column)[number].as_py()


@pytest.mark.parametrize(("destination", "notes"), [("out", False), ("out.hdf5", True)])
def test_skills_of_any_name_stay_apart(destination: str, notes: bool, tmp_path: Path) -> None:
    given = store_of(tmp_path / "store", skill=NAMES)
    export_selection("mocapact", given, tmp_path / destination, {"notes": notes})
    import_source("mocapact", tmp_path / destination, tmp_path / "again")
    assert_kept(given, open_store(tmp_path / "again").select(), "skill")


@given(st.text(st.characters(exclude_categories=["Cs"])), st.integers(0, 10**6))
def test_a_clip_of_any_name_is_told_by_its_group(clip: str, frame: int) -> None:
    snippet = MocapactSnippet(clip_name(clip), frame, 2 * frame)
    assert MocapactSnippet.parse(snippet.name) == snippet
    assert clip_of(snippet.clip) == clip
    assert not set(snippet.name) & {"/", "\0", "\n"}
    assert not snippet.name.startswith(".")


@given(st.text(st.sampled_from("%2Fa.")))
def test_a_name_in_a_file_is_another_clip_than_every_other_name(name: str) -> None:
    clip = clip_of(name)
    assert clip == name or clip_name(clip) == name


@pytest.mark.parametrize("notes", [True, False])
def test_episodes_without_a_clip_go_by_their_skill(notes: bool, tmp_path: Path) -> None:
    store = rollout_store(tmp_path / "store", [(3, "terminated"), (4, "truncated")])
    whole = store.select()
    lacking = ("part", "start", "clip", "snippet_start", "snippet_end", "rollout", "random_start")
    rows = whole.episodes().drop_columns(list(lacking))
    rows = rows.set_column(0, "episode", pa.array([100, 101]))
    fields = {per: store.schema.names(per) for per in ("step", "episode")}
    arrays = {per: {name: whole.read(name) for name in fields[per]} for per in fields}
    store.write_part("part-9", arrays["step"], rows, arrays["episode"])
    whole = open_store(tmp_path / "store").select()
    report = export_selection("mocapact", whole, tmp_path / "out", {"notes": notes})
    assert any(note.startswith("2 of 4 episodes have no clip, ") for note in report.carried.notes)
    report = import_source("mocapact", tmp_path / "out", tmp_path / "again")
    again = open_store(tmp_path / "again").select()
    assert report.episodes == 4
    assert sorted(again.lengths) == [3, 3, 4, 4]
    clips = ["CMU_000", "CMU_001", None, None] if notes else ["CMU_000", "CMU_001", "walk", "walk"]
    assert again.episodes().column("clip").to_pylist() == clips
    assert again.read("obs")[7:].tobytes() == whole.read("obs")[7:].tobytes()


def test_frames_that_are_none_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    columns = {"snippet_start": [-3], "snippet_end": [9], "random_start": [False]}
    given = store_of(tmp_path / "store", clip=["a/b"], **columns)
    with pytest.raises(DatasetError, match=r"clip a/b: no frames are -3 to 9; count from 0"):
        export_selection("mocapact", given, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def test_a_metric_that_some_rollouts_lack_is_kept_of_the_other_snippets(tmp_path: Path) -> None:
    columns: dict[str, Sequence[Any]] = {
        "snippet_start": [0, 0, 0],
        "snippet_end": [9, 9, 9],
        "random_start": [False, False, False],
        "norm_return": [1.5, None, 2.5],
    }
    given = store_of(tmp_path / "store", clip=["a", "b", "b"], **columns)
    report = export_selection("mocapact", given, tmp_path / "out.h5", {"notes": False})
    assert (
        "norm_episode_returns of some snippets: not all of their rollouts have a norm_return"
        in report.carried.left
    )
    import_source("mocapact", tmp_path / "out.h5", tmp_path / "again")
    again = open_store(tmp_path / "again").select().episodes()
    assert again.column("norm_return").to_pylist() == [1.5, None, None]


def test_files_without_a_snippet_are_named_as_left(tmp_path: Path) -> None:
    source = tmp_path / "rollouts"
    source.mkdir()
    rollouts = make_rollouts((3, 2), 0, sum(SMALL_WIDTHS.values()))
    write_file(source / "CMU_001.hdf5", {"CMU_001-0-35": (rollouts, 1)})
    with h5py.File(source / "CMU_002.hdf5", "w") as file:
        file["clip-None-None/0/actions"] = np.zeros((3, 4), np.float32)
    report = import_source("mocapact", source, tmp_path / "store")
    assert report.episodes == 2
    assert "CMU_002.hdf5: has no group <clip>-<start>-<end>" in report.carried.left


@pytest.mark.parametrize("notes", [True, False])
def test_episodes_in_another_order_are_compared(notes: bool, tmp_path: Path) -> None:
    store = rollout_store(tmp_path / "store", random_episodes(12))
    rows = store.select().episodes().drop_columns(["part", "start"])
    clips = [f"CMU_{number % 3:03d}" for number in range(12)]
    rows = rows.set_column(rows.column_names.index("clip"), "clip", [clips])
    mixed = Store.create(tmp_path / "mixed", store.schema)
    arrays = {each: store.select().read(each) for each in store.schema.names()}
    steps = {each: arrays.pop(each) for each in store.schema.names("step")}
    mixed.write_part("p", steps, rows, arrays)
    export_selection("mocapact", mixed.select(), tmp_path / "out", {"notes": notes})
    assert len(list((tmp_path / "out").iterdir())) == 3


def clip_of_a_store(folder: Path, name: str) -> None:
    """The clips of a store, which become files, and of such a file, which become columns."""
    store = rollout_store(folder / "store", random_episodes(3))
    store.select().annotate({"clip": name})
    export_selection("mocapact", store.select(), folder / "source", {"notes": False})
    import_source("mocapact", folder / "source", folder / "again")


@pytest.mark.slow
@settings(max_examples=12)
@given(name=FILE_NAMES)
def test_no_name_of_a_clip_writes_outside(
    tmp_path_factory: pytest.TempPathFactory, name: str
) -> None:
    assert_nothing_outside(clip_of_a_store, tmp_path_factory, name)
