"""Imports that were killed at any moment, or given up: what they leave, and who clears it away."""

import shutil
import signal
from pathlib import Path

import pytest

from gaitforge.common.locks import exclusive_lock
from gaitforge.datasets import Store, open_store
from gaitforge.datasets.formats import sources
from gaitforge.datasets.formats.protocol import Advance
from gaitforge.datasets.formats.transfer.exporting import export_selection
from gaitforge.datasets.formats.transfer.importing import import_source
from tests.datasets.formats.cases import CASES
from tests.datasets.formats.format_stores import (
    Episode,
    assert_equal,
    plain_store,
    random_episodes,
)
from tests.datasets.formats.rows_format import NAME, RowsImporter
from tests.datasets.programs import run_killed

IMPORTING = "gaitforge.datasets.formats.transfer.importing"
IMPORTS = """
from gaitforge.datasets.formats import sources
from gaitforge.datasets.formats.transfer import importing
from tests.datasets.formats import rows_format

rows_format.register()
sources.SHARD_STEPS = 300
importing.import_source(rows_format.NAME, sys.argv[1], sys.argv[2], workers=1)
"""
ENDINGS = ("truncated", "terminated")


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "SHARD_STEPS", 300)


def stop_at_once(total: int) -> Advance:
    def advance(steps: int) -> None:
        raise KeyboardInterrupt

    return advance


def exported(folder: Path, name: str, episodes: list[Episode]) -> Store:
    """A store and an export of it, `name`.out."""
    store = plain_store(folder / f"{name}.zarr", episodes)
    export_selection(NAME, store.select(), folder / f"{name}.out")
    return store


def interrupted(source: Path, store: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        import_source(NAME, source, store, begin=stop_at_once, workers=1)
    assert staged(store.parent)


def staged(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if ".importing" in path.name)


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize(
    ("function", "calls", "there"),
    [
        ("array_digest", 3, False),
        ("replace_durably", 1, True),
        ("_Import._publish", 1, True),
    ],
)
def test_a_killed_import_goes_on(function: str, calls: int, there: bool, tmp_path: Path) -> None:
    store = exported(tmp_path, "given", [(50, each) for each in ENDINGS * 8])
    again = tmp_path / "again"
    place, source = f"{IMPORTING}:{function}", tmp_path / "given.out"
    done = run_killed(place, calls, IMPORTS, source, again, after=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert again.exists() == there
    if there:
        assert_equal(CASES[NAME], store.select(), open_store(again).select())
    import_source(NAME, tmp_path / "given.out", again)
    assert_equal(CASES[NAME], store.select(), open_store(again).select())
    assert open_store(again).verify() == []
    assert staged(tmp_path) == []


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("moves", [1, 2])
def test_killed_while_it_adds_to_a_store_it_adds_the_rest(moves: int, tmp_path: Path) -> None:
    whole = plain_store(tmp_path / "store", [(50, each) for each in ENDINGS * 16])
    for number, part in enumerate(whole.parts()):
        export_selection(NAME, whole.select(part=part), tmp_path / f"{number}.out")
    import_source(NAME, tmp_path / "0.out", tmp_path / "again")
    before = len(open_store(tmp_path / "again").parts())
    place, arguments = f"{IMPORTING}:replace_durably", (tmp_path / "1.out", tmp_path / "again")
    died = run_killed(place, moves, IMPORTS, *arguments, after=True)
    assert died.returncode == -signal.SIGKILL
    assert len(open_store(tmp_path / "again").parts()) == before + moves // 2
    assert open_store(tmp_path / "again").select().lengths.min() == 50
    import_source(NAME, tmp_path / "1.out", tmp_path / "again")
    again = open_store(tmp_path / "again")
    assert again.verify() == []
    assert len(again.select()) == 32
    assert staged(tmp_path) == []


def test_what_can_still_go_on_or_is_at_work_is_kept(tmp_path: Path) -> None:
    for name, seed in (("one", 0), ("two", 1)):
        exported(tmp_path, name, random_episodes(5, seed))
        interrupted(tmp_path / f"{name}.out", tmp_path / "again")
    one, two = sorted(path for path in tmp_path.glob(".again.*.importing"))
    assert (one / "store").is_dir()
    assert (two / "store").is_dir()
    origins = {(path / "origin").read_text(): path for path in (one, two)}
    left = origins[str(tmp_path / "two.out")]
    import_source(NAME, tmp_path / "one.out", tmp_path / "again")
    assert staged(tmp_path) == [left.name]
    shutil.rmtree(tmp_path / "two.out")
    with exclusive_lock(tmp_path / f"{left.name}.lock"):
        import_source(NAME, tmp_path / "one.out", tmp_path / "again")
        assert left.is_dir()
    import_source(NAME, tmp_path / "one.out", tmp_path / "again")
    assert staged(tmp_path) == []


def test_a_store_of_a_longer_name_keeps_its_own(tmp_path: Path) -> None:
    exported(tmp_path, "given", random_episodes(5))
    interrupted(tmp_path / "given.out", tmp_path / "again.more")
    import_source(NAME, tmp_path / "given.out", tmp_path / "again")
    assert len(staged(tmp_path)) == 1


def test_a_readers_error_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exported(tmp_path, "given", random_episodes(5))

    def broken(*args: object) -> None:
        raise AttributeError("a fault of the program")

    monkeypatch.setattr(RowsImporter, "read_part", broken)
    with pytest.raises(AttributeError):
        import_source(NAME, tmp_path / "given.out", tmp_path / "again")
    assert staged(tmp_path) == []


@pytest.mark.parametrize("there", [True, False])
def test_a_link_to_an_empty_folder_is_followed(there: bool, tmp_path: Path) -> None:
    store = exported(tmp_path, "given", random_episodes(5))
    if there:
        (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    report = import_source(NAME, tmp_path / "given.out", tmp_path / "link")
    assert report.destination == str(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert_equal(CASES[NAME], store.select(), open_store(tmp_path / "real").select())
    assert staged(tmp_path) == []
