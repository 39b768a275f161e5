"""A store on a web server is read as the local one is, through faults, and never written."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from gaitforge.datasets import DatasetError, open_store
from gaitforge.plugins.exchange.recording.recorder import Recorder, RecordingOptions
from gaitforge.plugins.exchange.tests.web.web_server import Served, serving, slow
from gaitforge.plugins.exchange.web import web_files
from gaitforge.plugins.exchange.web.cache import CACHE, CACHE_GB, CacheBound
from gaitforge.plugins.exchange.web.get import get_selection
from gaitforge.plugins.exchange.web.manifest import MANIFEST, write_manifest
from tests.pipeline.command_line import Run, call

pytest.importorskip("obstore")


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of 60 episodes in 5 parts, with its manifest."""
    path = tmp_path_factory.mktemp("web") / "walks.zarr"
    rng = np.random.default_rng(0)
    with Recorder(path, RecordingOptions(0.02, part_steps=120, robot="dog")) as recorder:
        recorder.start({"mass": np.arange(6.0)})
        for step in range(100):
            done = np.full(6, step % 10 == 9)
            obs = rng.standard_normal((6, 8), np.float32)
            recorder.add(obs, obs[:, :2], obs[:, 0], done, ~done & False, final_obs=obs)
    store = open_store(path)
    assert len(store.parts()) == 5
    store.set_about(licence="MIT")
    write_manifest(store)
    return path


@pytest.fixture
def web(stored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """A server of a copy of the store, and an empty cache; waits are short."""
    shutil.copytree(stored, tmp_path / "served" / "walks.zarr")
    monkeypatch.setenv(CACHE, str(tmp_path / "cache"))
    monkeypatch.setattr(web_files, "FIRST_WAIT_S", 0.001)
    with serving(tmp_path / "served") as served:
        yield served


def same(first: str | Path, second: str | Path) -> bool:
    """Whether two stores have the same hash, catalog and values."""
    one, other = open_store(first), open_store(second)
    pair = one.select(), other.select()
    fields = one.schema.names()
    return (
        one.info().hash == other.info().hash
        and pair[0].episodes().equals(pair[1].episodes())
        and all(np.array_equal(pair[0].read(name), pair[1].read(name)) for name in fields)
    )


def test_a_served_store_is_the_local_one_and_is_fetched_once(web: Served, stored: Path) -> None:
    address = f"{web.address}/walks.zarr"
    assert same(address, stored)
    objects = {path: count for path, count in web.asked.items() if "/parts/" in path}
    assert same(address, stored)
    again = {path: count for path, count in web.asked.items() if "/parts/" in path}
    del objects["walks.zarr/parts/zarr.json"], again["walks.zarr/parts/zarr.json"]
    assert objects == again == dict.fromkeys(objects, 1)


def test_only_the_fields_of_the_selected_parts_are_fetched(web: Served, stored: Path) -> None:
    store = open_store(f"{web.address}/walks.zarr")
    part = store.parts()[2]
    store.select().where(f"part = '{part}'").read("action")
    fetched = {path: size for path, size in web.sent.items() if path.count("/") > 3}
    local = sorted((stored / "parts" / part / "action").rglob("*"))
    sizes = {f"walks.zarr/{path.relative_to(stored)}": path.stat().st_size
             for path in local if path.is_file()}  # fmt: skip
    assert fetched == sizes


def test_windows_are_those_of_the_local_store(web: Served, stored: Path) -> None:
    pytest.importorskip("torch")

    def batches(address: str | Path) -> list[bytes]:
        stream = open_store(address).select().windows(window_len=4, batch_size=16, seed=3)
        return [batch["obs"].numpy().tobytes() for batch in stream]

    assert batches(f"{web.address}/walks.zarr") == batches(stored)


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_busy_server_is_asked_again(web: Served, stored: Path, status: int) -> None:
    web.fault = lambda path, count: status if count < 3 else None
    assert same(f"{web.address}/walks.zarr", stored)


@pytest.mark.parametrize("ranges", [True, False])
def test_an_answer_that_is_cut_goes_on(web: Served, stored: Path, ranges: bool) -> None:
    web.ranges = ranges
    web.fault = lambda path, count: 0.6 if count < 4 else None
    assert same(f"{web.address}/walks.zarr", stored)
    if ranges:  # nothing was sent twice
        for path, sent in web.sent.items():
            assert sent == (web.folder / path).stat().st_size, path


def test_a_slow_server_is_waited_for(web: Served, stored: Path) -> None:
    web.fault = slow(0.02)
    assert same(f"{web.address}/walks.zarr", stored)


def test_a_server_that_stays_away_is_one_line(web: Served) -> None:
    web.fault = lambda path, count: 503
    with pytest.raises(DatasetError, match=r"manifest\.json cannot be read") as refused:
        open_store(f"{web.address}/walks.zarr")
    assert "\n" not in str(refused.value)


def test_the_second_time_needs_no_server(web: Served, stored: Path) -> None:
    address = f"{web.address}/walks.zarr"
    assert same(address, stored)
    web.fault = lambda path, count: 503
    assert same(address, stored)


@pytest.mark.parametrize("pattern", ["zarr.json", "catalog/*.parquet", "parts/*/obs/c/0/0"])
def test_a_tampered_byte_is_refused(web: Served, pattern: str) -> None:
    file = sorted((web.folder / "walks.zarr").glob(pattern))[0]
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(bytes(content))
    with pytest.raises(DatasetError, match="SHA-256"):
        open_store(f"{web.address}/walks.zarr").select().read("obs")


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("no json", "is damaged"),
        ('{"manifest": 2, "files": {}}', "of version 2"),
        ('{"manifest": 1, "files": {}}', "names no zarr.json"),
        ('{"manifest": 1, "files": {"../../x": [1, "%s"]}}' % ("0" * 64), "names '../../x'"),
        ('{"manifest": 1, "files": {"/x": [1, "%s"]}}' % ("0" * 64), "names '/x'"),
        ('{"manifest": 1, "files": {"x": [1, "0"]}}', "no size and SHA-256"),
    ],
)
def test_a_bad_manifest_is_refused(web: Served, content: str, complaint: str) -> None:
    (web.folder / "walks.zarr" / MANIFEST).write_text(content)
    with pytest.raises(DatasetError, match=complaint):
        open_store(f"{web.address}/walks.zarr")


def test_a_store_without_a_manifest_says_how_to_make_one(web: Served) -> None:
    (web.folder / "walks.zarr" / MANIFEST).unlink()
    with pytest.raises(DatasetError, match="gaitforge manifest STORE"):
        open_store(f"{web.address}/walks.zarr")


@pytest.mark.parametrize(
    "address", ["https://me:secret@host/x", "hf://owner", "https://host/x?key=secret", "ftp://h/x"]
)
def test_what_is_no_address_is_refused_without_its_secrets(address: str) -> None:
    with pytest.raises(DatasetError) as refused:
        open_store(address)
    assert "secret" not in str(refused.value)


def test_nothing_is_written_through_an_address(web: Served) -> None:
    store = open_store(f"{web.address}/walks.zarr")
    for write in (lambda: store.tag("mine"), store.gc):
        with pytest.raises(DatasetError):
            write()


def test_a_newer_version_is_seen(web: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_files, "FRESH_S", 0.0)
    address = f"{web.address}/walks.zarr"
    before = open_store(address)
    local = open_store(web.folder / "walks.zarr")
    local.tag("first")
    write_manifest(local)
    assert [tag.name for tag in before.tags()] == ["first"]


def test_the_cache_is_bounded(
    web: Served, stored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gaitforge.plugins.exchange.web.cache._IN_USE_S", -1.0)
    monkeypatch.setattr(web_files, "BOUND", CacheBound())
    size = sum(path.stat().st_size for path in stored.glob("parts/*/**/*") if path.is_file())
    monkeypatch.setenv(CACHE_GB, str(size / 3 / 1e9))
    store = open_store(f"{web.address}/walks.zarr")
    for part in store.parts():
        store.select().where(f"part = '{part}'").read("obs")
    kept = sum(path.stat().st_size for path in tmp_path.glob("cache/*/parts/*/**/*")
               if path.is_file())  # fmt: skip
    assert 0 < kept <= size / 3
    assert same(f"{web.address}/walks.zarr", stored), "what was removed is fetched again"


def test_a_selection_is_copied_and_an_interrupted_copy_goes_on(
    web: Served, stored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(f"{web.address}/walks.zarr")
    whole = get_selection(store.select(), tmp_path / "whole.zarr")
    assert whole.hash == open_store(stored).info().hash
    assert same(tmp_path / "whole.zarr", stored)
    monkeypatch.setenv(CACHE, str(tmp_path / "other-cache"))
    store = open_store(f"{web.address}/walks.zarr")
    last = store.parts()[3]
    web.fault = lambda path, count: 503 if f"parts/{last}" in path else None
    with pytest.raises(DatasetError):
        get_selection(store.select().where("mass < 2"), tmp_path / "some.zarr")
    assert 0 < len(open_store(tmp_path / "some.zarr").parts()) < 5
    web.fault = lambda path, count: None
    some = get_selection(store.select().where("mass < 2"), tmp_path / "some.zarr")
    expected = open_store(stored).select().where("mass < 2")
    held = open_store(tmp_path / "some.zarr").select()
    assert (some.episodes, some.steps) == (len(expected), expected.steps)
    assert np.array_equal(held.read("obs"), expected.read("obs"))
    assert held.episode_ids().tolist() == expected.episode_ids().tolist()


def test_the_commands_take_an_address(web: Served, tmp_path: Path, run: Run) -> None:
    address = f"{web.address}/walks.zarr"
    assert "60" in run("query", address).out
    out = tmp_path / "heavy.zarr"
    done = run("get", address, out, "--where", "mass > 3", "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["episodes"] == 20
    assert run("info", out).code == 0
    assert run("manifest", out).code == 0
    assert (out / MANIFEST).is_file()
    assert run("verify", out).code == 0
    assert call("card", address, "--out", str(tmp_path / "card")) == 0
    assert call("doctor", address) in (0, 1)
    small = ["--model", "mlp", "--steps", "1", "--batch-size", "4"]
    held = ["--set", "config.held_out_fraction=0"]
    assert call("train", address, *small, *held, "--out", str(tmp_path / "run")) == 0
    refused = run("get", address, out / "inside.zarr")
    assert refused.code == 2
    assert run("get", address, out, "--where", "mass > 99").code == 2
