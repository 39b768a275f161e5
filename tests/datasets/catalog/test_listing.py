"""Single episodes: names that can be typed, rows in order, and what stores say they are."""

import copy
import errno
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gaitforge.common.files import write_bytes_durably
from gaitforge.datasets import DatasetError, Store, open_store
from gaitforge.datasets.catalog.summaries import episode_id, episode_name
from gaitforge.datasets.stream.stream_config import StreamConfig
from tests.datasets.making import part_input, small_schema

PLAN = 0xA293CB << 32


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Two parts of one plan; only the second has the column `fell`."""
    made = Store.create(tmp_path_factory.mktemp("listing") / "s.zarr", small_schema())
    made.write_part("a293cb-00000", **part_input((5, 1, 9), PLAN))
    later = part_input((3, 4), PLAN + 3)
    later["episodes"]["fell"] = np.array([True, False])
    made.write_part("a293cb-00001", **later)
    return open_store(made.path)


@given(st.integers(-(2**31), 2**60 - 1))
def test_a_name_gives_its_id_back(episode: int) -> None:
    name = episode_name(episode)
    assert episode_id(name) == episode_id(str(episode)) == episode
    assert episode < 2**32 or episode_id(name.upper()) == episode


@pytest.mark.parametrize("name", ["", "x", "a293cb", "a293cb-", "-1-2", f"a-{10**11}", "1.5"])
def test_other_text_is_no_episode(name: str) -> None:
    with pytest.raises(DatasetError, match="is no episode; give its name, such as a293cb-00017"):
        episode_id(name)


def test_episodes_are_listed_in_order_with_falls(store: Store) -> None:
    table = store.select().episodes().to_pylist()
    rows = store.select().listing(sort="return desc", show=["friction"])
    assert [row["return"] for row in rows] == sorted((r["return"] for r in table), reverse=True)
    by_name = {row["episode"]: row for row in rows}
    assert list(by_name[f"a293cb-{4:05d}"]) == [
        *("episode", "part", "terrain", "skill", "level", "length", "return", "success", "fell"),
        "friction",
    ]
    falls = [by_name[f"a293cb-{i:05d}"]["fell"] for i in range(5)]
    assert falls == [*(row["terminated"] for row in table[:3]), True, False]
    assert [row["episode"] for row in store.select().listing(2)] == ["a293cb-00000", "a293cb-00001"]
    assert store.select().listing(1, "terrain")[0]["terrain"] == "flat"


def test_wrong_requests_name_what_is_near(store: Store) -> None:
    with pytest.raises(DatasetError, match="unknown column 'retrun'; nearest: return"):
        store.select().listing(sort="retrun")
    with pytest.raises(DatasetError, match="'COLUMN desc' for the largest first"):
        store.select().listing(sort="return down")
    with pytest.raises(DatasetError, match="nearest: a293cb-00004"):
        store.select().named("a293cb-00017")
    with pytest.raises(DatasetError, match=r"a293cb-00000 of .* is not among the chosen ones"):
        store.select().where("length = 1").named("a293cb-00000")
    one = store.select().named("a293cb-00001", str(PLAN + 1))
    assert one.lengths.tolist() == [1]


def test_stores_and_selections_say_what_they_hold(store: Store) -> None:
    text = repr(store)
    for part in (str(store.path), store.info().hash[:12], "5 episodes", "22 steps", "2 terrains"):
        assert part in text
    assert "of 5 episodes" in repr(store.select(terrain="flat"))
    assert "1 terrain: flat" in repr(store.select(terrain="flat"))


def test_stores_and_selections_open_again_in_another_process(store: Store) -> None:
    chosen = store.select(terrain="flat").where("length > 1")
    again = pickle.loads(pickle.dumps(chosen))  # noqa: S301 (our own bytes)
    assert again.hash == chosen.hash
    assert again.store.full_address == store.full_address
    assert copy.deepcopy(store).info() == store.info()
    store.tag("v1")
    tagged = pickle.loads(pickle.dumps(open_store(store.path, tag="v1")))  # noqa: S301
    assert tagged.tag_name == "v1"


def test_sizes_of_a_stream_are_whole_numbers() -> None:
    for name in ("window_len", "batch_size", "prefix_len", "rank", "seed"):
        with pytest.raises(DatasetError, match=rf"{name} must be a whole number, not 1\.5"):
            StreamConfig(**dict[str, Any]({name: 1.5}))
    assert StreamConfig(window_len=np.int64(3)).window_len == 3  # type: ignore[arg-type]


def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left on device") as caught:
        write_bytes_durably(tmp_path / "x.json", b"x")
    assert caught.value.filename == str(tmp_path / "x.json")
    assert list(tmp_path.iterdir()) == []
