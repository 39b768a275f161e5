"""Copies of a selection on a node's own disk: the same stream, written once, never half there."""

import errno
import json
import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gaitforge.datasets import DatasetError, Selection, Store, open_store
from gaitforge.datasets.stream.materialise import DONE, Materialised
from tests.datasets.making import part_input, small_schema, small_store
from tests.datasets.programs import Program, run_on_full_disk
from tests.datasets.streaming import PARTS, every_step, same_batches, steps_of


@pytest.fixture(scope="module")
def selection(tmp_path_factory: pytest.TempPathFactory) -> Selection:
    store = small_store(tmp_path_factory.mktemp("store") / "s", PARTS)
    return store.select().where("length <> 17")


@pytest.fixture(scope="module")
def copy(selection: Selection, tmp_path_factory: pytest.TempPathFactory) -> Materialised:
    return selection.materialise(tmp_path_factory.mktemp("copies"), ("obs", "action", "reward"))


@settings(max_examples=15)
@given(
    window_len=st.integers(1, 70),
    prefix_len=st.integers(0, 70),
    batch_size=st.integers(1, 9),
    world_size=st.integers(1, 3),
    workers=st.sampled_from([0, 2]),
    pool_steps=st.integers(1, 300),
    seed=st.integers(0, 2**40),
    epoch=st.integers(0, 5),
    return_to_go=st.booleans(),
)
def test_the_stream_is_the_stores_bit_for_bit(
    selection: Selection, copy: Materialised, world_size: int, **settings: Any
) -> None:
    for rank in range(world_size):
        settings |= {"rank": rank, "world_size": world_size, "fields": ("obs", "reward")}
        assert same_batches(copy.windows(**settings), selection.windows(**settings))


def test_a_state_goes_from_store_to_copy(selection: Selection, copy: Materialised) -> None:
    stored = selection.windows(8, 6, pool_steps=150)
    iteration = iter(stored)
    seen = [next(iteration) for _ in range(3)]
    mapped = copy.windows(8, 6, pool_steps=150)
    mapped.load_state_dict(stored.state_dict())
    assert steps_of(seen + list(mapped)) == every_step(selection)


def test_the_files_are_plain_arrays(selection: Selection, copy: Materialised) -> None:
    obs = np.load(copy.path / "obs.npy", mmap_mode="r")
    assert np.array_equal(obs[:-1], selection.read("obs"))
    assert not obs[-1].any()
    assert (copy.steps, len(copy)) == (selection.steps, len(selection))
    assert np.array_equal(copy.episode_ids, selection.episode_ids())
    assert copy.fields == ["action", "obs", "reward"]
    assert copy.verify() == []


def test_a_copy_is_found_again_by_its_hash(selection: Selection, tmp_path: Path) -> None:
    first = selection.materialise(tmp_path, ("obs", "action"))
    stamps = {path: path.stat().st_mtime_ns for path in first.path.iterdir()}
    store = open_store(selection.store.path)
    again = store.select().where("length <> 17").materialise(tmp_path, ("action", "obs"))
    assert again.path == first.path
    assert {path: path.stat().st_mtime_ns for path in first.path.iterdir()} == stamps
    others = [
        selection.materialise(tmp_path, ("obs",)),
        selection.where("length > 5").materialise(tmp_path),
    ]
    assert len({first.path, *(other.path for other in others)}) == 3
    assert sorted(tmp_path.iterdir()) == sorted(each.path for each in (first, *others))


def test_a_copy_outlives_its_store(tmp_path: Path) -> None:
    chosen = small_store(tmp_path / "s", PARTS).select()
    expected = list(chosen.windows(8, 6, return_to_go=True))
    path = chosen.materialise(tmp_path / "copies").path
    shutil.rmtree(tmp_path / "s")
    assert same_batches(Materialised(path).windows(8, 6, return_to_go=True), expected)


MATERIALISES = """
import sys
from pathlib import Path
from gaitforge.datasets import open_store
from gaitforge.datasets.stream.materialise import DONE

chosen = open_store(sys.argv[1]).select()
print("ready", flush=True)
while not Path(sys.argv[3]).exists():
    pass
copy = chosen.materialise(sys.argv[2])
print(copy.path.name, (copy.path / DONE).stat().st_ino, copy.steps)
"""


def test_processes_at_once_share_one_copy(selection: Selection, tmp_path: Path) -> None:
    arguments = MATERIALISES, selection.store.path, tmp_path / "copies", tmp_path / "go"
    programs = [Program(*arguments) for _ in range(3)]
    for program in programs:
        program.stdout.readline()
    (tmp_path / "go").touch()
    (found,) = {program.finish().stdout for program in programs}  # one folder, written once
    name, _, steps = found.split()
    assert int(steps) == open_store(selection.store.path).select().steps
    assert [each.name for each in (tmp_path / "copies").iterdir()] == [name]


def test_a_killed_writer_leaves_nothing_that_is_taken_for_a_copy(tmp_path: Path) -> None:
    store = small_store(tmp_path / "s", [[50] * 40] * 6)
    code = (
        "import sys; from gaitforge.datasets import open_store;"
        "from gaitforge.datasets.stream import materialise as m;"
        "print('ready', flush=True);"
        "[open_store(sys.argv[1]).select().where(f'episode <> {i}').materialise(sys.argv[2])"
        " for i in range(1000)]"
    )
    copies = tmp_path / "copies"
    for delay in (0.0, 0.03, 0.08):
        child = Program(code, store.path, copies)
        child.stdout.readline()
        time.sleep(delay)
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
    for index in range(5):
        chosen = store.select().where(f"episode <> {index}")
        copy = chosen.materialise(copies)
        assert copy.verify() == []
        assert np.array_equal(np.load(copy.path / "obs.npy")[:-1], chosen.read("obs"))
        assert not (copies / f".{copy.path.name}.tmp").exists()


def test_damage_in_the_store_is_not_copied(tmp_path: Path) -> None:
    store = small_store(tmp_path / "s", PARTS)
    chosen = store.select()
    victim = sorted(store.path.glob("parts/*/obs/c/0/0"))[2]
    content = bytearray(victim.read_bytes())
    content[8] ^= 1
    victim.write_bytes(content)
    with pytest.raises(DatasetError, match=r"part-002.*CRC32C"):
        chosen.materialise(tmp_path / "copies")
    assert list((tmp_path / "copies").iterdir()) == []


def test_damaged_copies_are_named(selection: Selection, tmp_path: Path) -> None:
    copy = selection.materialise(tmp_path)
    file = copy.path / "obs.npy"
    content = bytearray(file.read_bytes())
    content[-200] ^= 1
    file.write_bytes(content)
    assert copy.verify() == [f"{file} does not have its recorded SHA-256"]
    file.write_bytes(content[:-1])
    with pytest.raises(DatasetError, match=r"obs.npy is missing or does not have .* remove"):
        selection.materialise(tmp_path)
    record = json.loads((copy.path / DONE).read_text())
    (copy.path / DONE).write_text(json.dumps(record | {"materialised_version": 99}))
    with pytest.raises(DatasetError, match="version 99; this program reads version 1"):
        Materialised(copy.path)
    (copy.path / DONE).unlink()
    with pytest.raises(DatasetError, match="not a complete copy"):
        Materialised(copy.path)


def test_a_disk_that_fills_up_leaves_nothing(tmp_path: Path) -> None:
    store = small_store(tmp_path / "s", [[50] * 20])
    code = "chosen = open_store(sys.argv[1]).select(); limited(); chosen.materialise(sys.argv[2])"
    done = run_on_full_disk(5000, code, store.path, tmp_path / "copies")
    assert "cannot materialise the selection to" in done.stdout
    assert os.strerror(errno.EFBIG) in done.stdout
    assert list((tmp_path / "copies").iterdir()) == []


def test_what_cannot_be_copied(selection: Selection, copy: Materialised, tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="allowed: obs, action, reward"):
        selection.materialise(tmp_path, ("torque",))
    with pytest.raises(DatasetError, match="selection is empty"):
        selection.where("length > 1000").materialise(tmp_path)
    with pytest.raises(DatasetError, match="allowed: action, obs, reward"):
        copy.windows(fields=("torque",))
    (tmp_path / "file").write_text("mine")
    with pytest.raises(DatasetError, match="cannot materialise the selection"):
        selection.materialise(tmp_path / "file" / "below")
    obs = small_schema().field("obs")
    store = Store.create(tmp_path / "plain", small_schema(fields=(obs,)))
    given_part = part_input((3, 4))
    store.write_part("p", {"obs": given_part["steps"]["obs"]}, given_part["episodes"])
    plain = store.select().materialise(tmp_path / "copies", ("obs",))
    with pytest.raises(DatasetError, match="return_to_go needs a scalar field 'reward'"):
        plain.windows(fields=("obs",), return_to_go=True)
