"""Actions beside rewards and next observations are the executed ones, and clean ones on request."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gaitforge.collectors.legged.data import CollectionGrid
from gaitforge.datasets import DatasetError, Selection, Store, equal_shares, open_store
from gaitforge.datasets.edits.assemble import apply_edits, merge_stores
from gaitforge.datasets.formats import find_format
from gaitforge.datasets.formats.transfer.exporting import export_selection
from gaitforge.datasets.formats.transfer.importing import import_source
from gaitforge.flows.progress import Silent
from gaitforge.flows.stages.collect import collect
from gaitforge.flows.stages.replay import replay
from gaitforge.flows.tasks.legged import LeggedPlan
from tests.datasets.formats import rows_format
from tests.datasets.formats.cases import CASES
from tests.datasets.formats.rows_format import NAME
from tests.flows.gym_stores import make_gym_store
from tests.pipeline.command_line import call

GRID = CollectionGrid(
    terrains=("flat", "stairs"),
    skills=("stand", "rush"),
    levels=(0, 4),
    parts=2,
    episodes_per_part=8,
    action_noise=(0.0, 0.5),
)
FORMATS = [name for name, case in CASES.items() if case.has_notes]
"""Formats with rewards, which have the executed actions."""


@pytest.fixture(autouse=True, scope="module")
def rows() -> Iterator[None]:
    """The tests' own format is known."""
    with rows_format.registered():
        yield


@pytest.fixture(scope="module")
def noisy(tmp_path_factory: pytest.TempPathFactory) -> Store:
    path = tmp_path_factory.mktemp("executed") / "legged.zarr"
    collect(LeggedPlan(grid=GRID, robots=8, threads=1), path, Silent())
    return open_store(path)


@pytest.fixture(scope="module")
def edited(noisy: Store, tmp_path_factory: pytest.TempPathFactory) -> Selection:
    """A copy with episodes trimmed at both ends, and one dropped."""
    folder = tmp_path_factory.mktemp("edited")
    copy = open_store(apply_edits(noisy, folder / "copy.zarr", lambda steps: None))
    copy.select().where("length > 60").trim(head=5, tail=40)
    one = copy.select()
    one.with_rows(one.rows[[3]]).drop()
    return open_store(copy.path).select()


def executed(selection: Selection) -> Iterator[np.ndarray]:
    """(T, 12) of each episode: the last action of the next observation."""
    place = slice(*selection.schema.field("obs").slices["last_action"])
    for number in range(len(selection)):
        episode = selection.episode(number)
        yield np.concatenate([episode["obs"][1:], episode["final_obs"][None]])[:, place]


def clean(selection: Selection) -> Iterator[np.ndarray]:
    for number in range(len(selection)):
        yield selection.episode(number)["action"]


def by_episode(selection: Selection, rows: Iterator[np.ndarray]) -> dict[int, np.ndarray]:
    return dict(zip(selection.episode_ids().tolist(), rows, strict=True))


def streamed(batches: Any, selection: Selection, name: str = "action") -> dict[int, np.ndarray]:
    """Episode id -> (T, 12) of a stream's masked steps."""
    lengths, ids = selection.lengths, selection.episode_ids().tolist()
    rows = {number: np.full((n, 12), np.nan) for number, n in zip(ids, lengths, strict=True)}
    for batch in batches:
        for row, (episode, offset) in enumerate(
            zip(batch["episode"].tolist(), batch["offset"].tolist(), strict=True)
        ):
            columns = np.flatnonzero(batch["mask"][row])
            rows[ids[episode]][offset + columns] = batch[name][row][columns]
    return rows


def assert_same(rows: dict[int, np.ndarray], wanted: dict[int, np.ndarray]) -> None:
    assert rows.keys() == wanted.keys()
    for number, values in rows.items():
        np.testing.assert_array_equal(values, wanted[number])


@pytest.mark.parametrize("which", ["whole", "edited"])
def test_transitions_hold_the_executed_actions(
    noisy: Store, edited: Selection, which: str, tmp_path: Path
) -> None:
    selection = noisy.select() if which == "whole" else edited
    wanted, labels = (by_episode(selection, rows(selection)) for rows in (executed, clean))
    assert any((wanted[number] != labels[number]).any() for number in wanted)
    sizes: dict[str, Any] = {"window_len": 13, "batch_size": 7, "seed": 3}
    assert_same(streamed(selection.windows(**sizes, transitions=True), selection), wanted)
    asked = selection.windows(**sizes, transitions=True, actions="clean")
    assert_same(streamed(asked, selection), labels)
    assert_same(streamed(selection.windows(**sizes), selection), labels)
    labelled = selection.with_actions("clean").windows(**sizes, transitions=True)
    assert_same(streamed(labelled, selection), labels)
    assert_same(streamed(selection.windows(**sizes, actions="executed"), selection), wanted)
    ranks = [
        batch
        for rank in range(2)
        for batch in selection.windows(**sizes, transitions=True, rank=rank, world_size=2)
    ]
    assert_same(streamed(ranks, selection), wanted)
    chosen = selection.with_actions()
    assert chosen.hash != selection.hash
    copied = chosen.materialise(tmp_path / "copies")
    assert_same(streamed(copied.windows(13, 7), selection), wanted)
    np.testing.assert_array_equal(chosen.dask("action").compute(), chosen.read("action"))
    mixture = equal_shares(selection, "skill")
    assert mixture.selection.hash == selection.hash
    for batch in mixture.windows(**sizes, transitions=True):
        for row, episode in enumerate(batch["episode"].tolist()):
            own = wanted[int(selection.episode_ids()[episode])]
            offset, size = int(batch["offset"][row]), int(batch["mask"][row].sum())
            np.testing.assert_array_equal(batch["action"][row][:size], own[offset : offset + size])
            follows = own[offset + 1 : offset + size + 1]
            np.testing.assert_array_equal(batch["next_action"][row][: len(follows)], follows)


def test_a_state_goes_on_with_other_actions_at_the_same_steps(noisy: Store) -> None:
    selection = noisy.select()
    sizes: dict[str, Any] = {"window_len": 13, "batch_size": 7}
    stream = selection.windows(**sizes, transitions=True, actions="clean")
    iteration = iter(stream)
    next(iteration)
    later = selection.windows(**sizes, transitions=True)
    later.load_state_dict(stream.state_dict())
    for rest, same in zip(later, iteration, strict=True):
        assert rest["offset"].equal(same["offset"])
        assert rest["obs"].equal(same["obs"])


@pytest.mark.parametrize("notes", [True, False])
@pytest.mark.parametrize("actions", ["", "clean", "executed"])
@pytest.mark.parametrize("name", FORMATS)
def test_exports_hold_the_executed_actions(
    edited: Selection, name: str, actions: str, notes: bool, tmp_path: Path, capsys: Any
) -> None:
    if missing := find_format(name).missing:
        pytest.skip(f"{', '.join(missing)} not installed: extras")
    out = tmp_path / ("out.hdf5" if CASES[name].notes else "out-v0")
    report = export_selection(name, edited, out, {"actions": actions, "notes": notes})
    wanted = list((clean if actions == "clean" else executed)(edited))
    kind = "clean" if actions == "clean" else "executed"
    assert [line for line in report.carried.notes if line.startswith(f"actions: {kind}")]
    import_source(name, out, tmp_path / "again.zarr")
    again = open_store(tmp_path / "again.zarr").select()
    rows = sorted(rows.tobytes() for rows in clean(again))
    assert rows == sorted(rows.tobytes() for rows in wanted)
    assert call("info", again.store.path, "--json") == 0
    told = json.loads(capsys.readouterr().out)["actions"]
    assert told.startswith(kind) if notes else told == "as stored"
    if notes and kind == "executed":
        assert again.with_actions("executed").hash == again.hash == again.with_actions().hash
        with pytest.raises(DatasetError, match="holds executed actions only"):
            again.windows(actions="clean")


def test_an_imported_export_says_so_replays_and_merges_with_its_like_only(
    noisy: Store, tmp_path: Path
) -> None:
    export_selection(NAME, noisy.select(), tmp_path / "out")
    import_source(NAME, tmp_path / "out", tmp_path / "again.zarr")
    assert replay(tmp_path / "again.zarr", 16, 0, Silent()) == []
    with pytest.raises(ValueError, match="stored_actions"):
        merge_stores(noisy, open_store(tmp_path / "again.zarr"), tmp_path / "merged.zarr")


def test_the_command_line_chooses_and_refuses(noisy: Store, tmp_path: Path, capsys: Any) -> None:
    clean_too = "--actions", "clean"
    assert call("export", noisy.path, NAME, tmp_path / "a", *clean_too) == 0
    assert "actions: clean" in capsys.readouterr().out
    plain = {"notes": False}
    export_selection(NAME, noisy.select(), tmp_path / "b", plain)
    import_source(NAME, tmp_path / "b", tmp_path / "b.zarr")
    words = "export", tmp_path / "b.zarr", NAME, tmp_path / "c", "--actions", "executed"
    assert call(*words) == 2
    complaint = capsys.readouterr().err
    assert "does not tell executed actions" in complaint
    assert complaint.count("\n") == 1


def test_stores_of_tasks_that_keep_executed_actions_give_them_on_request(
    tmp_path: Path, capsys: Any
) -> None:
    store = open_store(make_gym_store(tmp_path / "hopper.zarr", episodes=2))
    assert call("export", store.path, NAME, tmp_path / "out", "--actions", "executed") == 0
    assert "actions: executed" in capsys.readouterr().out
    plain = store.select()
    chosen = plain.with_actions("executed")
    assert chosen.hash == plain.hash
    assert chosen.schema == plain.schema
    np.testing.assert_array_equal(chosen.read("action"), plain.read("action"))
    sizes: dict[str, Any] = {"window_len": 4, "batch_size": 4}
    copy = plain.materialise(tmp_path / "copies")
    for stream in (plain.windows(**sizes, actions="executed"), copy.windows(**sizes)):
        for one, other in zip(stream, plain.windows(**sizes), strict=True):
            assert one["action"].equal(other["action"])
