"""Fields added by exact replay, and new rewards: equal to what collection stores, bit for bit."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gaitforge.collectors.legged.data import CollectionGrid, StoredForm
from gaitforge.collectors.physics.interface import PhysicsState
from gaitforge.common.interrupts import Interrupted
from gaitforge.common.trust import trusting
from gaitforge.datasets import DatasetError, Store, open_store
from gaitforge.datasets.layout import OVERLAYS
from gaitforge.flows.progress import Silent
from gaitforge.flows.stages.collect import collect
from gaitforge.flows.tasks.legged import LeggedPlan
from gaitforge.plugins.what_if.added_fields import DerivePlan, RelabelPlan
from tests.flows.making import Interrupting

GRID = CollectionGrid(
    terrains=("flat", "stairs"), skills=("stand", "tilt", "rush"), parts=2, episodes_per_part=6
)


def base_height(state: PhysicsState) -> np.ndarray:
    """Height of the base in the world."""
    return state.base_pos[:, 2]


def nothing(state: PhysicsState) -> np.ndarray:
    """Not an array of the robots."""
    return np.zeros(1 + len(state.base_pos))


def halved(episode: dict[str, np.ndarray]) -> np.ndarray:
    """Half of the collected reward."""
    return episode["reward"] / 2


def of_height(episode: dict[str, np.ndarray]) -> np.ndarray:
    """The height of the base, from a field that was added."""
    return episode["height"]


@pytest.fixture
def trusted() -> Iterator[None]:
    """The user's trust in this module's functions."""
    names = ("base_height", "halved", "of_height", "missing", "nothing", "blank")
    with trusting([f"{__name__}:{name}" for name in names]):
        yield


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that holds state and privileged beside the rest, half of it under action noise."""
    path = tmp_path_factory.mktemp("derive") / "legged.zarr"
    form = StoredForm(state=True, privileged=True)
    collect(LeggedPlan(grid=GRID, robots=6, threads=1, form=form), path, Silent())
    open_store(path).tag("before")
    return path


@pytest.fixture
def store(collected: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(collected, tmp_path / "legged.zarr"))


def derive(store: Path, of: str, **more: Any) -> list[Any]:
    plan = DerivePlan(str(store), of=of, robots=4, threads=1, **more)
    return collect(plan, plan.address, Silent())


def files(store: Path) -> dict[str, bytes]:
    return {
        path.relative_to(store).as_posix(): path.read_bytes()
        for folder in ("parts", "catalog", "tags")
        for path in (store / folder).rglob("*")
        if path.is_file()
    }


@pytest.mark.slow
def test_known_fields_are_those_of_the_collection_and_nothing_else_changes(store: Path) -> None:
    before, kept = open_store(store, tag="before").info(), files(store)
    for of in ("state", "privileged", "height_scan", "foot_positions", "contact_forces"):
        assert len(derive(store, of, name=f"again_{of}")) == GRID.parts
    selection = open_store(store).select()
    for name in ("state", "privileged"):
        np.testing.assert_array_equal(selection.read(f"again_{name}"), selection.read(name))
        field, again = selection.schema.field(name), selection.schema.field(f"again_{name}")
        assert replace(again, name=name) == field
    start, stop = selection.schema.field("privileged").slices["height_scan"]
    scan = selection.read("privileged")[:, start:stop]
    np.testing.assert_array_equal(selection.read("again_height_scan"), scan)
    feet, base = selection.read("again_foot_positions"), selection.read("state")[:, :3]
    assert feet.shape == (selection.steps, 4, 3)
    assert (np.linalg.norm(feet - base[:, None], axis=2) < 1.0).all()
    contact = selection.read("again_contact_forces")
    first, last = selection.schema.field("privileged").slices["foot_contact"]
    touching = selection.read("privileged")[:, first:last] > 0
    np.testing.assert_array_equal(np.linalg.norm(contact, axis=2) > 1.0, touching)
    one = selection.episode(4)
    np.testing.assert_array_equal(one["again_state"], one["state"])
    assert open_store(store, tag="before").info() == before
    assert kept == files(store)
    assert open_store(store).verify() == []
    tagged = open_store(store, tag="before").select()
    with pytest.raises(DatasetError, match="unknown field 'again_state'"):
        tagged.read("again_state")


@pytest.mark.slow
@pytest.mark.usefixtures("trusted")
def test_a_stream_gives_the_same_windows_and_the_new_field(store: Path) -> None:
    def batches(fields: tuple[str, ...]) -> list[dict[str, Any]]:
        stream = open_store(store).select(skill="rush").windows(16, 8, seed=1, fields=fields)
        return list(stream)

    hash_before = open_store(store).select(skill="rush").hash
    before = batches(("obs", "action"))
    derive(store, f"{__name__}:base_height", name="height", unit="m")
    after = batches(("obs", "action", "height"))
    assert open_store(store).select(skill="rush").hash == hash_before
    for old, new in zip(before, after, strict=True):
        assert all(np.array_equal(old[name], new[name]) for name in ("obs", "action", "mask"))
        assert new["height"].shape == new["mask"].shape
    described = open_store(store).select().schema.field("height")
    assert (described.unit, described.description) == ("m", "Height of the base in the world.")
    state = open_store(store).select().read("state")
    np.testing.assert_array_equal(open_store(store).select().read("height"), state[:, 2])


def test_an_interrupted_derivation_resumes_with_the_parts_that_are_missing(store: Path) -> None:
    plan = DerivePlan(str(store), of="state", name="again", robots=6, threads=1)
    with pytest.raises(Interrupted):
        collect(plan, plan.address, Interrupting(after=1400, error=Interrupted))
    made = open_store(plan.address).parts()
    assert 0 < len(made) < GRID.parts
    assert open_store(store).edits() == ()
    assert len(collect(plan, plan.address, Silent())) == GRID.parts - len(made)
    assert collect(plan, plan.address, Silent()) == []
    assert [edit.kind for edit in open_store(store).edits()] == ["field"]


@pytest.mark.slow
def test_a_killed_derivation_loses_nothing_that_was_committed(store: Path) -> None:
    words = ["-m", "gaitforge", "derive", str(store), "--field", "state", "--name", "again"]
    process = subprocess.Popen([sys.executable, *words, "--threads", "1"])
    catalog = Path(DerivePlan(str(store), of="state", name="again").address) / "catalog"
    while process.poll() is None and not list(catalog.glob("[!.]*.parquet")):
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert open_store(store).edits() == ()
    derive(store, "state", name="again")
    selection = open_store(store).select()
    np.testing.assert_array_equal(selection.read("again"), selection.read("state"))
    assert open_store(store).gc() == []


def _changed(store: Path, tmp_path: Path, **changes: Any) -> Path:
    """A store of the first part with a field's bit or a column of its third episode changed."""
    source = open_store(store)
    copy = Store.create(tmp_path / "changed.zarr", source.schema)
    selection = source.select(part=source.parts()[0])
    table = selection.episodes().drop_columns(["part", "start"])
    columns = {name: table[name].to_pylist() for name in table.column_names}
    steps = {name: selection.read(name) for name in source.schema.names("step")}
    for name, value in changes.items():
        if name in columns:
            columns[name][2] = value
        else:
            rows = steps[name].reshape(selection.steps, -1)
            rows[selection.starts[2] + 7, 0] = np.nextafter(rows[selection.starts[2] + 7, 0], value)
    ends = {name: selection.read(name) for name in source.schema.names("episode")}
    copy.write_part(source.parts()[0], steps, columns, ends)
    return copy.path


@pytest.mark.parametrize("change", [{"action": np.float32(9)}, {"seed": 5}, {"reward": np.inf}])
def test_an_episode_that_does_not_repeat_stops_it_and_is_named(
    store: Path, tmp_path: Path, change: dict[str, Any]
) -> None:
    path = _changed(store, tmp_path, **change)
    episode = open_store(path).select().episode_ids()[2]
    with pytest.raises(
        ValueError, match=f"^episode {episode} of part .* does not repeat: "
    ) as found:
        derive(path, "state", name="again")
    assert "\n" not in str(found.value)
    assert open_store(path).edits() == ()


def blank(episode: Any) -> Any:
    """ """
    return episode["reward"]


@pytest.mark.usefixtures("trusted")
def test_a_reward_is_described_by_its_name_where_its_docstring_is_blank() -> None:
    name = f"{__name__}:blank"
    assert RelabelPlan("any", reward=name).field.description == f"{name} ({name})"


@pytest.mark.usefixtures("trusted")
def test_a_new_reward_takes_the_old_ones_place_and_the_return_follows(store: Path) -> None:
    old = open_store(store).select()
    rewards, returns, digest = old.read("reward"), old.catalog.numbers("return"), old.hash
    plan = RelabelPlan(str(store), reward=f"{__name__}:halved", threads=1)
    assert len(collect(plan, plan.address, Silent())) == GRID.parts
    assert collect(plan, plan.address, Silent()) == []
    new = open_store(store).select()
    np.testing.assert_array_equal(new.read("reward"), rewards / 2)
    np.testing.assert_allclose(new.catalog.numbers("return"), returns / 2, rtol=1e-6)
    assert new.hash != digest
    stream = new.windows(16, 8, fields=("obs",), return_to_go=True)
    assert max(float(batch["return_to_go"].max()) for batch in stream) <= returns.max() / 2 + 1e-3
    tagged = open_store(store, tag="before").select()
    np.testing.assert_array_equal(tagged.read("reward"), rewards)
    assert tagged.hash == digest
    np.testing.assert_array_equal(old.read("reward"), rewards)
    assert open_store(store).verify() == []


@pytest.mark.slow
@pytest.mark.usefixtures("trusted")
def test_trims_and_drops_before_and_after_keep_the_new_fields_rows(store: Path) -> None:
    open_store(store).select(skill="stand").trim(head=5, tail=3)
    derive(store, f"{__name__}:base_height", name="height")
    open_store(store).select(skill="tilt").drop()
    plan = RelabelPlan(str(store), reward=f"{__name__}:of_height", threads=1)
    collect(plan, plan.address, Silent())
    selection = open_store(store).select()
    heights = selection.read("state")[:, 2]
    np.testing.assert_array_equal(selection.read("height"), heights)
    np.testing.assert_array_equal(selection.read("reward"), heights)
    ends = np.cumsum(selection.lengths)
    sums = [
        heights[b - n : b].sum(dtype=np.float64)
        for b, n in zip(ends, selection.lengths, strict=True)
    ]
    np.testing.assert_allclose(selection.catalog.numbers("return")[selection.rows], sums)


@pytest.fixture(scope="module")
def with_state(collected: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store with its states derived again; tests that change it copy it."""
    path = shutil.copytree(collected, tmp_path_factory.mktemp("again") / "legged.zarr")
    derive(path, "state", name="again")
    return path


@pytest.fixture
def derived(with_state: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(with_state, tmp_path / "derived.zarr"))


@pytest.mark.slow
def test_compact_gc_and_later_parts(derived: Path) -> None:
    store = derived
    before = open_store(store).info().hash
    folder = DerivePlan(str(store), of="state", name="again").folder
    (store / OVERLAYS / folder / ".staging" / "half").mkdir()
    assert f"{OVERLAYS}/{folder}/.staging/half" in open_store(store).gc()
    open_store(store).compact()
    open_store(store).gc()
    selection = open_store(store).select()
    np.testing.assert_array_equal(selection.read("again"), selection.read("state"))
    assert open_store(store).info().hash == before
    assert open_store(store).verify() == []


@pytest.mark.slow
def test_verify_names_a_changed_byte_of_a_field(derived: Path) -> None:
    store = derived
    folder = store / OVERLAYS / DerivePlan(str(store), of="state", name="again").folder
    shard = next((folder / "parts").glob("*/again/c/0/0"))
    shard.write_bytes(bytes([shard.read_bytes()[0] ^ 1]) + shard.read_bytes()[1:])
    [fault] = open_store(store).verify()
    assert fault.startswith(f"{OVERLAYS}/{folder.name}: part {shard.parts[-5]}: object again/c/0/0")
    with pytest.raises(DatasetError, match="CRC32C"):
        open_store(store).select().read("again")


@pytest.mark.usefixtures("trusted")
@pytest.mark.parametrize(
    ("of", "name", "message"),
    [
        ("statue", "", "unknown field 'statue'; allowed: height_scan"),
        ("state", "", "has a field 'state' already; give another name than"),
        ("state", "Bad name", "field name 'Bad name' is not allowed"),
        (f"{__name__}:missing", "", "no function .*:missing"),
        (f"{__name__}:nothing", "", r"must return an array of shape \(robots, ...\)"),
        (f"{__name__}:halved", "", "halved failed: TypeError"),
    ],
)
def test_what_cannot_be_derived_is_refused_in_one_line(
    store: Path, of: str, name: str, message: str
) -> None:
    with pytest.raises(ValueError, match=message) as found:
        derive(store, of, name=name)
    assert "\n" not in str(found.value)
    assert not (store / OVERLAYS).exists()
