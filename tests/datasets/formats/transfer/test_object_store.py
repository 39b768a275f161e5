"""Imports into stores on object storage, and exports from them."""

import os
import signal
from pathlib import Path

import pytest

from gaitforge.common.errors import StorageError
from gaitforge.datasets import DatasetError, open_store
from gaitforge.datasets.formats import sources
from gaitforge.datasets.formats.protocol import Advance
from gaitforge.datasets.formats.transfer.exporting import export_selection
from gaitforge.datasets.formats.transfer.importing import import_source
from gaitforge.datasets.storage.s3 import Bucket, push_store
from tests.datasets.formats import rows_format
from tests.datasets.formats.cases import ROWS
from tests.datasets.formats.format_stores import assert_equal, plain_store, random_episodes
from tests.datasets.formats.rows_format import NAME
from tests.datasets.programs import run_killed

CREATE = "gaitforge.datasets.storage.s3:Bucket.create"
IMPORTS = """
from gaitforge.datasets.formats import sources
from gaitforge.datasets.formats.transfer.importing import import_source
from tests.datasets.formats import rows_format

rows_format.register()
sources.SHARD_STEPS = 100
import_source(rows_format.NAME, sys.argv[1], sys.argv[2])
"""


def staged(folder: Path) -> list[Path]:
    """What imports that did not end left beside the mirrors below a cache folder."""
    return sorted(folder.rglob("*.importing"))


@pytest.mark.slow
def test_what_leaves_object_storage_comes_back_to_it(url: str, tmp_path: Path) -> None:
    local = plain_store(tmp_path / "store", random_episodes(40))
    push_store(local, url)
    remote = open_store(url).select(terrain="rough")
    export_selection(NAME, remote, tmp_path / "out")
    report = import_source(NAME, tmp_path / "out", f"{url}-again")
    again = open_store(f"{url}-again")
    assert_equal(ROWS, local.select(terrain="rough"), again.select())
    assert again.verify() == []
    assert (report.destination, report.episodes) == (f"{url}-again", 20)
    before = Bucket(f"{url}-again").list("")
    assert import_source(NAME, tmp_path / "out", f"{url}-again").steps == report.steps
    assert Bucket(f"{url}-again").list("") == before
    assert staged(tmp_path) == []


@pytest.mark.slow
def test_several_sources_make_one_store(url: str, tmp_path: Path) -> None:
    whole = plain_store(tmp_path / "store", random_episodes(30))
    for part in whole.parts():
        export_selection(NAME, whole.select(part=part), tmp_path / f"{part}.rows")
        import_source(NAME, tmp_path / f"{part}.rows", url)
    assert open_store(url).verify() == []
    assert sorted(open_store(url).select().lengths) == sorted(whole.select().lengths)
    export_selection(NAME, whole.select(), tmp_path / "all.rows")
    with pytest.raises(DatasetError, match=r"are in store s3://.* already"):
        import_source(NAME, tmp_path / "all.rows", url)
    assert len(open_store(url).select()) == 30


@pytest.mark.slow
@pytest.mark.parametrize("call", [1, 8, 40])
def test_an_import_that_was_killed_goes_on(
    call: int, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = plain_store(tmp_path / "store", random_episodes(100))
    export_selection(NAME, store.select(), tmp_path / "out.rows")
    done = run_killed(CREATE, call, IMPORTS, tmp_path / "out.rows", url)
    assert done.returncode == -signal.SIGKILL, done.stderr
    if call == 1:
        with pytest.raises(DatasetError, match="no store at s3://"):
            open_store(url)
    else:
        assert call == 40 or open_store(url).parts() == []
        assert open_store(url).verify() == []
    assert len(staged(tmp_path)) == 1
    monkeypatch.setattr(sources, "SHARD_STEPS", 100)
    report = import_source(NAME, tmp_path / "out.rows", url)
    assert report.parts > 2
    again = open_store(url)
    assert_equal(ROWS, store.select(), again.select())
    assert again.verify() == []
    assert staged(tmp_path) == []


def test_a_storage_that_refuses(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = plain_store(tmp_path / "store", random_episodes(30))
    export_selection(NAME, store.select(), tmp_path / "out.rows")

    def begin(total: int) -> Advance:
        def advance(steps: int) -> None:
            monkeypatch.setenv("AWS_ENDPOINT_URL", f"{endpoint}/no_such_bucket")

        return advance

    endpoint = os.environ["AWS_ENDPOINT_URL"]
    with pytest.raises(StorageError, match=r"s3://.* cannot be written"):
        import_source(NAME, tmp_path / "out.rows", url, begin=begin)
    [kept] = staged(tmp_path)
    assert len(open_store(kept / "store").select()) == 30
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    import_source(NAME, tmp_path / "out.rows", url)
    assert_equal(ROWS, store.select(), open_store(url).select())


def test_bad_input_leaves_object_storage_empty(url: str, tmp_path: Path) -> None:
    store = plain_store(tmp_path / "store", random_episodes(30))
    export_selection(NAME, store.select(), tmp_path / "out.rows")
    rows_format.spoil(tmp_path / "out.rows", slice(35, 36))
    with pytest.raises(DatasetError, match=r"action.bin: action: row 17 is not finite"):
        import_source(NAME, tmp_path / "out.rows", url)
    assert Bucket(url).list("") == {}
    assert staged(tmp_path) == []
