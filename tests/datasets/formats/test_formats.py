"""What holds for every format of another project, whatever it looks like on disk."""

from __future__ import annotations

import errno
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gaitforge.datasets import DatasetError, Field, Schema, Store, open_store
from gaitforge.datasets.formats import FORMATS, FormatEntry, find_format, sources
from gaitforge.datasets.formats.interface import Advance
from gaitforge.datasets.formats.transfer.exporting import export_selection
from gaitforge.datasets.formats.transfer.importing import import_source
from tests.datasets.formats.format_stores import CASES, ENDINGS, Case, assert_equal, random_episodes
from tests.datasets.programs import run_program

HERE = [name for name in CASES if not FORMATS[name].missing]

FILLS_UP = """
import resource, signal, sys
from gaitforge.datasets import DatasetError, open_store
from gaitforge.datasets.formats.transfer.exporting import export_selection

chosen = open_store(sys.argv[2]).select()
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (9000, 9000))
try:
    export_selection(sys.argv[1], chosen, sys.argv[3])
except DatasetError as error:
    print(error)
"""

EPISODE = st.tuples(st.integers(1, 4), st.sampled_from(list(ENDINGS)))


@pytest.fixture(params=sorted(CASES))
def name(request: pytest.FixtureRequest) -> str:
    """A format whose packages are installed."""
    if missing := FORMATS[request.param].missing:
        pytest.skip(f"{', '.join(missing)} not installed: extras")
    return request.param


@pytest.fixture
def case(name: str) -> Case:
    return CASES[name]


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of at most 160 steps, so that a small source has several."""
    monkeypatch.setattr(sources, "SHARD_STEPS", 160)


def exported(name: str, store: Store, folder: Path) -> Path:
    path = folder / f"{name}.out"
    export_selection(name, store.select(), path)
    return path


def leftovers(folder: Path, *known: str) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name not in known)


def test_many_random_episodes_come_back(
    name: str, case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "SHARD_STEPS", 200)
    episodes = random_episodes(120)
    assert {length for length, _ in episodes} >= {1}
    store = case.make(tmp_path / "store", episodes)
    path = exported(name, store, tmp_path)
    report = import_source(name, path, tmp_path / "again")
    again = open_store(tmp_path / "again")
    assert_equal(case, store.select(), again.select())
    assert again.verify() == []
    assert (report.episodes, report.steps) == (120, store.select().steps)
    assert report.parts == len(again.parts()) > 1


@pytest.mark.parametrize("name", HERE)
@settings(
    max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(st.tuples(st.integers(1, 4), st.sampled_from(list(ENDINGS))), min_size=1, max_size=5)
)
def test_any_few_episodes_come_back(
    name: str,
    tmp_path_factory: pytest.TempPathFactory,
    episodes: list[tuple[int, str]],
) -> None:
    folder, case = tmp_path_factory.mktemp(name), CASES[name]
    store = case.make(folder / "store", episodes)
    import_source(name, exported(name, store, folder), folder / "again")
    assert_equal(case, store.select(), open_store(folder / "again").select())


def test_a_part_of_a_store_comes_back(name: str, case: Case, tmp_path: Path) -> None:
    store = case.make(tmp_path / "store", random_episodes(60))
    chosen = store.select(terrain="rough").where("length > 3")
    export_selection(name, chosen, tmp_path / "out")
    import_source(name, tmp_path / "out", tmp_path / "again")
    assert_equal(case, chosen, open_store(tmp_path / "again").select())


def test_importing_again_changes_nothing(name: str, case: Case, tmp_path: Path) -> None:
    path = exported(name, case.make(tmp_path / "store", random_episodes(20)), tmp_path)
    import_source(name, path, tmp_path / "again")
    before = open_store(tmp_path / "again").info()
    report = import_source(name, path, tmp_path / "again")
    assert open_store(tmp_path / "again").info() == before
    assert report.episodes == 20


@pytest.mark.usefixtures("small_parts")
def test_an_interrupted_import_shows_nothing_and_goes_on(
    name: str, case: Case, tmp_path: Path
) -> None:
    store = case.make(tmp_path / "store", random_episodes(120))
    path = exported(name, store, tmp_path)
    done: list[int] = []

    def begin(total: int) -> Advance:
        def advance(steps: int) -> None:
            done.append(steps)
            if len(done) == 3:
                raise KeyboardInterrupt

        return advance

    with pytest.raises(KeyboardInterrupt):
        import_source(name, path, tmp_path / "again", begin=begin, workers=1)
    assert not (tmp_path / "again").exists()
    [staged] = tmp_path.glob(".again.*.importing/store")
    kept = {part: stamp(staged, part) for part in Store.open(staged).parts()}
    assert len(kept) >= 2
    import_source(name, path, tmp_path / "again")
    assert kept.items() <= {p: stamp(tmp_path / "again", p) for p in kept}.items()
    assert_equal(case, store.select(), open_store(tmp_path / "again").select())
    assert leftovers(tmp_path, "store", "again", path.name) == []


def stamp(store: Path, part: str) -> int:
    return (store / "catalog" / f"{part}.parquet").stat().st_mtime_ns


@pytest.mark.usefixtures("small_parts")
def test_a_source_that_changed_since_the_interruption_is_read_anew(
    name: str, case: Case, tmp_path: Path
) -> None:
    path = exported(name, case.make(tmp_path / "store", random_episodes(120)), tmp_path)

    def begin(total: int) -> Advance:
        def advance(steps: int) -> None:
            raise KeyboardInterrupt

        return advance

    with pytest.raises(KeyboardInterrupt):
        import_source(name, path, tmp_path / "again", begin=begin, workers=1)
    for file in [path, *path.rglob("*")] if path.is_dir() else [path]:
        file.touch()
    [staged] = tmp_path.glob(".again.*.importing/store")
    old = {part: stamp(staged, part) for part in Store.open(staged).parts()}
    import_source(name, path, tmp_path / "again")
    assert all(stamp(tmp_path / "again", part) > time for part, time in old.items())


def test_two_sources_in_one_store(name: str, case: Case, tmp_path: Path) -> None:
    whole = case.make(tmp_path / "store", random_episodes(30))
    for number, part in enumerate(whole.parts()):
        export_selection(name, whole.select(part=part), tmp_path / f"{number}.out")
        import_source(name, tmp_path / f"{number}.out", tmp_path / "again")
    again = open_store(tmp_path / "again")
    assert again.verify() == []
    assert sorted(again.select().lengths) == sorted(whole.select().lengths)
    assert leftovers(tmp_path, "store", "again", "0.out", "1.out") == []


def test_a_store_of_another_schema_is_refused(tmp_path: Path) -> None:
    name, case = "fcnet", CASES["fcnet"]
    path = exported(name, case.make(tmp_path / "store", random_episodes(5)), tmp_path)
    Store.create(tmp_path / "other", Schema((Field("obs", (9,)),), 0.02, "aliengo"))
    with pytest.raises(DatasetError, match="another schema than the source gives, in its fields"):
        import_source(name, path, tmp_path / "other")
    assert open_store(tmp_path / "other").parts() == []


def test_episodes_that_are_there_are_not_imported_twice(tmp_path: Path) -> None:
    store = CASES["d4rl"].make(tmp_path / "store", random_episodes(9))
    path = exported("d4rl", store, tmp_path)
    with pytest.raises(DatasetError, match=r"episode ids 0, 1, 2, 3, … .9 in all. of the source"):
        import_source("d4rl", path, store.path)
    assert len(open_store(store.path).select()) == 9


def test_nothing_is_unpickled(name: str, case: Case, tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[object, tuple[Path]]:
            return Path.touch, (tmp_path / "sprung",)

    path = exported(name, case.make(tmp_path / "store", random_episodes(5)), tmp_path)
    read = (each for each in path.rglob("*") if each.name != "README.md")
    files = [path] if path.is_file() else [each for each in read if each.is_file()]
    for number, file in enumerate(files):
        content = file.read_bytes()
        file.write_bytes(pickle.dumps(Trap()))
        with pytest.raises((DatasetError, ValueError)):
            import_source(name, path, tmp_path / f"again-{number}")
        file.write_bytes(content)
        assert not (tmp_path / f"again-{number}").exists()
    assert not (tmp_path / "sprung").exists()


def test_a_source_that_is_not_there(name: str, tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="nowhere"):
        import_source(name, tmp_path / "nowhere", tmp_path / "again")
    assert leftovers(tmp_path) == []


def test_an_export_that_fails_leaves_nothing(name: str, case: Case, tmp_path: Path) -> None:
    store = case.make(tmp_path / "store", random_episodes(40))
    files = [path for path in store.path.glob("parts/part-1/obs/c/**/*") if path.is_file()]
    largest = max(files, key=lambda path: path.stat().st_size)
    largest.write_bytes(largest.read_bytes()[:-30])
    with pytest.raises(DatasetError, match="part-1"):
        export_selection(name, store.select(), tmp_path / "out")
    assert leftovers(tmp_path, "store") == []


@pytest.mark.parametrize("name", ["fcnet", "lerobot"])
def test_a_disk_that_fills_up_leaves_nothing(name: str, tmp_path: Path) -> None:
    store = CASES[name].make(tmp_path / "store", random_episodes(400))
    done = run_program(FILLS_UP, name, store.path, tmp_path / "out")
    assert f"cannot write {tmp_path / 'out'}: {os.strerror(errno.EFBIG)}" in done.stdout, (
        done.stderr
    )
    assert leftovers(tmp_path, "store") == []


def test_what_the_driver_refuses_before_it_writes(tmp_path: Path) -> None:
    store = CASES["fcnet"].make(tmp_path / "store", random_episodes(5))
    path = exported("fcnet", store, tmp_path)
    with pytest.raises(DatasetError, match="exists; give the path of a new file or folder"):
        export_selection("fcnet", store.select(), path)
    with pytest.raises(DatasetError, match="nothing to export"):
        export_selection("fcnet", store.select().where("length > 1000000"), tmp_path / "out")
    with pytest.raises(DatasetError, match="unknown option 'colour'; allowed: "):
        export_selection("fcnet", store.select(), tmp_path / "out", {"colour": 1})
    with pytest.raises(DatasetError, match="unknown option 'colour'; allowed: robot, horizon"):
        import_source("fcnet", path, tmp_path / "again", {"colour": 1})
    assert leftovers(tmp_path, "store", path.name) == []


def test_every_format_is_tried() -> None:
    assert CASES.keys() == FORMATS.keys()


def test_an_unknown_format_names_those_there_are() -> None:
    with pytest.raises(DatasetError, match="unknown format 'rlds'; allowed: d4rl, fcnet"):
        find_format("rlds")


def test_a_missing_package_gives_its_install_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    entry = FormatEntry("nothing", "file", "nowhere:Nothing", "", ("no_such_package",), "hdf5")
    monkeypatch.setitem(FORMATS, "nothing", entry)
    with pytest.raises(
        DatasetError, match=r"needs no_such_package, which is not installed: run .* -e '.\[hdf5"
    ):
        import_source("nothing", tmp_path, tmp_path / "again")


def test_parts_are_cut_at_whole_episodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "PART_BYTES", 100)
    parts = sources.pack_episodes(np.array([3, 7, 1, 25, 2, 8, 1]), row_bytes=10)
    assert [part.tolist() for part in parts] == [[3, 7], [1], [25], [2, 8], [1]]
