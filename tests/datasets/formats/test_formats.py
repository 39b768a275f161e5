"""What holds for every format of another project, whatever it looks like on disk."""

import errno
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gaitforge.datasets import DatasetError, Field, Schema, Store, open_store
from gaitforge.datasets.formats import FORMATS, FormatEntry, find_format, format_names, sources
from gaitforge.datasets.formats.protocol import Advance
from gaitforge.datasets.formats.transfer.exporting import export_selection
from gaitforge.datasets.formats.transfer.importing import import_source
from tests.datasets.formats.cases import CASES, VARIANTS
from tests.datasets.formats.format_stores import ENDINGS, Case, assert_equal, random_episodes
from tests.datasets.formats.rows_format import NAME
from tests.datasets.programs import run_on_full_disk

EXPORTS = (
    "from tests.datasets.formats import rows_format; rows_format.register(); "
    "from gaitforge.datasets.formats.transfer.exporting import export_selection; "
    "chosen = open_store(sys.argv[2]).select(); limited(); "
    "export_selection(sys.argv[1], chosen, sys.argv[3])"
)


def exported(name: str, store: Store, folder: Path) -> Path:
    path = folder / f"{name}.out"
    export_selection(name, store.select(), path)
    return path


def leftovers(folder: Path, *known: str) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name not in known)


@pytest.mark.slow
@pytest.mark.parametrize("name", VARIANTS)
@settings(max_examples=3)
@given(
    episodes=st.lists(
        st.tuples(st.integers(1, 4), st.sampled_from(list(ENDINGS))), min_size=1, max_size=6
    ),
    condition=st.sampled_from(["true", "terrain = 'flat'", "length > 1"]),
    shard_steps=st.sampled_from([3, 1 << 18]),
)
def test_any_episodes_come_back_and_importing_again_changes_nothing(
    name: str,
    tmp_path_factory: pytest.TempPathFactory,
    episodes: list[tuple[int, str]],
    condition: str,
    shard_steps: int,
) -> None:
    folder = tmp_path_factory.mktemp("out")
    base, case = VARIANTS[name]
    if missing := find_format(base).missing:
        pytest.skip(f"{', '.join(missing)} not installed: extras")
    whole = case.make(folder / "store", episodes).select()
    chosen = whole.where(condition)
    chosen = chosen if len(chosen) else whole
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "SHARD_STEPS", shard_steps)
        export_selection(base, chosen, folder / "out", dict(case.options))
        report = import_source(base, folder / "out", folder / "again")
        again = open_store(folder / "again")
        assert_equal(case, chosen, again.select())
        assert (report.episodes, report.steps) == (len(chosen), chosen.steps)
        assert report.parts == len(again.parts())
        assert again.verify() == []
        before = again.info()
        assert import_source(base, folder / "out", folder / "again").episodes == len(chosen)
    assert open_store(folder / "again").info() == before


def test_two_sources_make_one_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "SHARD_STEPS", 50)
    whole = CASES[NAME].make(tmp_path / "store", random_episodes(30))
    for number, part in enumerate(whole.parts()):
        export_selection(NAME, whole.select(part=part), tmp_path / f"{number}.out")
        import_source(NAME, tmp_path / f"{number}.out", tmp_path / "again")
    again = open_store(tmp_path / "again")
    assert again.verify() == []
    assert len(again.parts()) > 2
    stores = again.select(), whole.select()
    actions = [sorted(s.episode(k)["action"].tobytes() for k in range(30)) for s in stores]
    assert actions[0] == actions[1]
    assert leftovers(tmp_path, "store", "again", "0.out", "1.out") == []


@pytest.mark.parametrize("changed", [False, True])
def test_an_interrupted_import_shows_nothing_and_goes_on_unless_the_source_changed(
    changed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "SHARD_STEPS", 100)
    store = CASES[NAME].make(tmp_path / "store", random_episodes(60))
    path = exported(NAME, store, tmp_path)
    done: list[int] = []

    def begin(total: int) -> Advance:
        def advance(steps: int) -> None:
            done.append(steps)
            if len(done) == 3:
                raise KeyboardInterrupt

        return advance

    with pytest.raises(KeyboardInterrupt):
        import_source(NAME, path, tmp_path / "again", begin=begin, workers=1)
    assert not (tmp_path / "again").exists()
    [staged] = tmp_path.glob(".again.*.importing/store")
    kept = {part: stamp(staged, part) for part in Store.open(staged).parts()}
    assert len(kept) >= 2
    for file in path.rglob("*") if changed else ():
        file.touch()
    import_source(NAME, path, tmp_path / "again")
    now = {part: stamp(tmp_path / "again", part) for part in kept}
    assert all((now[part] > time) == changed for part, time in kept.items())
    assert_equal(CASES[NAME], store.select(), open_store(tmp_path / "again").select())
    assert leftovers(tmp_path, "store", "again", path.name) == []


def stamp(store: Path, part: str) -> int:
    return (store / "catalog" / f"{part}.parquet").stat().st_mtime_ns


def test_a_store_of_another_schema_is_refused(tmp_path: Path) -> None:
    path = exported(NAME, CASES[NAME].make(tmp_path / "store", random_episodes(5)), tmp_path)
    Store.create(tmp_path / "other", Schema((Field("obs", (9,)),), 0.02, "aliengo"))
    with pytest.raises(DatasetError, match="another schema than the source gives, in its fields"):
        import_source(NAME, path, tmp_path / "other")
    assert open_store(tmp_path / "other").parts() == []


def test_episodes_that_are_there_are_not_imported_twice(tmp_path: Path) -> None:
    store = CASES[NAME].make(tmp_path / "store", random_episodes(9))
    path = exported(NAME, store, tmp_path)
    with pytest.raises(DatasetError, match=r"episode ids 0, 1, 2, 3, … .9 in all. of the source"):
        import_source(NAME, path, store.path)
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


def test_a_disk_that_fills_up_leaves_nothing(name: str, case: Case, tmp_path: Path) -> None:
    if case.required:
        pytest.skip("HDF5 wants the room beforehand: `check_room`")
    store = case.make(tmp_path / "store", random_episodes(400))
    done = run_on_full_disk(9000, EXPORTS, name, store.path, tmp_path / "out")
    assert f"cannot write {tmp_path / 'out'}: {os.strerror(errno.EFBIG)}" in done.stdout, (
        done.stderr
    )
    assert leftovers(tmp_path, "store") == []


def test_what_the_driver_refuses_before_it_writes(tmp_path: Path) -> None:
    store = CASES[NAME].make(tmp_path / "store", random_episodes(5))
    path = exported(NAME, store, tmp_path)
    with pytest.raises(DatasetError, match="exists; give the path of a new file or folder"):
        export_selection(NAME, store.select(), path)
    with pytest.raises(DatasetError, match="nothing to export"):
        export_selection(NAME, store.select().where("length > 1000000"), tmp_path / "out")
    with pytest.raises(DatasetError, match="unknown option 'colour'; allowed: "):
        export_selection(NAME, store.select(), tmp_path / "out", {"colour": 1})
    with pytest.raises(DatasetError, match="unknown option 'colour'; allowed: quality, horizon"):
        import_source(NAME, path, tmp_path / "again", {"colour": 1})
    assert leftovers(tmp_path, "store", path.name) == []


def test_every_format_is_tried() -> None:
    assert set(CASES) == set(format_names())


def test_an_unknown_format_names_those_there_are() -> None:
    with pytest.raises(DatasetError, match=r"unknown format 'rlds'; allowed: .*rows"):
        find_format("rlds")


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    entry = FormatEntry("nothing", "file", "nowhere:Nothing", "", ("no_such_package",), "hdf5")
    monkeypatch.setitem(FORMATS, "nothing", entry)
    with pytest.raises(
        DatasetError, match=r"needs no_such_package, which is not installed: run .* -e '.\[hdf5"
    ):
        import_source("nothing", tmp_path, tmp_path / "again")


def test_parts_are_cut_at_whole_episodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "PART_BYTES", 100)
    parts = sources.cut_spans(np.array([3, 7, 1, 25, 2, 8, 1]), [Field("obs", (10,), "int8")])
    assert [part.lengths.tolist() for part in parts] == [[3, 7], [1], [25], [2, 8], [1]]
    starts = [(part.first, part.first_step) for part in parts]
    assert starts == [(0, 0), (2, 10), (3, 11), (4, 36), (6, 46)]
