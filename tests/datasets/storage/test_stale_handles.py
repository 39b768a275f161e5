"""Files that another host of NFS replaces while they are read: the first look at each is ESTALE."""

import builtins
import errno
import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from gaitforge.datasets import open_store
from gaitforge.datasets.edits.operations import drop
from gaitforge.flows.records.records import read_record
from tests.datasets.making import small_store


def make_stale_once(monkeypatch: pytest.MonkeyPatch, root: Path) -> set[tuple[str, str]]:
    """Fail the first call of each kind for each replaced file below `root`; returns these."""
    failed: set[tuple[str, str]] = set()

    def failing(kind: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Any, *args: Any, **options: Any) -> Any:
            name = str(path)
            replaced = name.startswith(str(root)) and name.endswith((".json", ".parquet", ".index"))
            if replaced and "/parts/" not in name and (kind, name) not in failed:
                failed.add((kind, name))
                raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), name)
            return real(path, *args, **options)

        return call

    opening = failing("open", io.open)
    monkeypatch.setattr(io, "open", opening)
    monkeypatch.setattr(builtins, "open", opening)
    monkeypatch.setattr(os, "stat", failing("stat", os.stat))
    monkeypatch.setattr(pq, "ParquetFile", failing("parquet", pq.ParquetFile))
    monkeypatch.setattr(pq, "read_schema", failing("schema", pq.read_schema))
    return failed


@pytest.mark.parametrize("indexed", [True, False])
def test_a_stale_handle_is_opened_again(
    indexed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = small_store(tmp_path / "store")
    if indexed:
        store.files.update_index()
    drop(store.select().where("level = 1"))
    record = tmp_path / "plan.json"
    record.write_text(json.dumps({"plan": {"steps": 5}}))
    whole = open_store(tmp_path / "store").select()
    lengths, digest = whole.lengths.tolist(), open_store(tmp_path / "store").info().hash
    with monkeypatch.context() as changed:
        failed = make_stale_once(changed, tmp_path)
        assert read_record(record) == {"plan": {"steps": 5}}
        again = open_store(tmp_path / "store")
        assert again.select().lengths.tolist() == lengths
        assert again.info().hash == digest
    names = {Path(name).parent.name for _, name in failed}
    assert {"edits", "catalog", "store", tmp_path.name} <= names
