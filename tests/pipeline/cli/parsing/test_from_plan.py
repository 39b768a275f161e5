"""`collect --from-plan`: its exit code, and parts that several plans share."""

import json
import shutil
from pathlib import Path

from tests.pipeline.command_line import Run


def test_content_that_differs_is_an_exit_code_and_shared_parts_count_once(
    store: Path, tmp_path: Path, run: Run
) -> None:
    source = tmp_path / "source.zarr"
    shutil.copytree(store, source)
    shutil.copytree(f"{store}.records", f"{source}.records")
    [first] = Path(f"{source}.records").glob("plan-*.json")
    shutil.copy(first, first.with_name("plan-0123456789abcdef.json"))
    record = json.loads(run("plan", source).out)
    assert len(record["plans"]) == 1, "the second plan has no part of its own"
    record["plans"] *= 2  # as files of older versions have it
    path = tmp_path / "p.json"
    path.write_text(json.dumps(record))
    words = ("collect", source, "--from-plan", path)
    same = run(*words)
    assert same.code == 0, same.err
    assert "1 part: the same content as planned" in same.out
    record["parts"] = dict.fromkeys(record["parts"], "0" * 64)
    path.write_text(json.dumps(record))
    differs = run(*words)
    assert differs.code == 1
    assert "1 of 1 part differ" in differs.out
    as_json = run(*words, "--json")
    assert as_json.code == 1
    assert json.loads(as_json.out)["differing"] == list(record["parts"])
