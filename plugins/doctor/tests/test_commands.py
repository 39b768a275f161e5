"""`gaitforge doctor`: exit codes, and commands that work as they are printed."""

import json
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gaitforge.datasets import open_store
from gaitforge.datasets.formats.transfer.exporting import export_selection
from gaitforge.plugins.doctor.data import Finding, store_data
from gaitforge.plugins.doctor.tests import faults
from tests.pipeline.cli.parsing.test_json_keys import wrong_keys
from tests.pipeline.command_line import TINY_GRID, Run, assert_refused
from tests.pipeline.report.test_report import PageReader


def _store(path: Path, *kinds: Any) -> Path:
    arrays, columns = faults.clean()
    for kind in kinds:
        kind(arrays, columns)
    faults.write_store(path, arrays, columns)
    return path


def _pasted(run: Run, commands: Sequence[str]) -> None:
    for command in commands:
        program, *words = shlex.split(command)
        assert program == "gaitforge"
        outcome = run(*words)
        assert outcome.code == 0, outcome.err


def test_help_has_the_doctor_after_the_card(run: Run) -> None:
    assert re.search(r"^    card .*\n(?:     .*\n)*    doctor ", run("--help").out, re.M)


def test_collected_episodes_have_no_finding(run: Run, tmp_path: Path) -> None:
    store = tmp_path / "legged.zarr"
    assert run("collect", store, *TINY_GRID).code == 0
    outcome = run("doctor", store, "--json")
    assert outcome.code == 0
    assert json.loads(outcome.out)["findings"] == []


def test_commands_drop_and_note_what_was_found(run: Run, tmp_path: Path) -> None:
    kinds = faults.copy, faults.returns, faults.rough, faults.constant_channel
    path, page = _store(tmp_path / "x y.zarr", *kinds), tmp_path / "doctor.html"
    outcome = run("doctor", path, "--json", "--out", page)
    assert outcome.code == 1
    record = json.loads(outcome.out)
    assert list(wrong_keys(record)) == []
    findings = record["findings"]
    assert [each["name"] for each in findings[:2]] == ["copy", "return"]
    for each in findings:
        _pasted(run, [example["view"] for example in each["examples"]])
    reader = PageReader(page.read_text())
    assert [row[0] for row in reader.rows].count("copy") == 1 + 1, "an example, a command"
    for each in findings:
        words = [f"{word} --no-pictures" if "card" in word else word for word in each["commands"]]
        _pasted(run, words)
    again = run("doctor", path)
    assert again.code == 0
    assert "copy" not in again.out
    assert {"rough", "constant-channel"} <= set(again.out.split())
    marked = json.loads(run("query", path, "--where", "doctor_rough", "--json").out)
    assert sum(row["episodes"] for row in marked) == 1


def test_an_episode_keeps_the_notes_of_several_findings(run: Run, tmp_path: Path) -> None:
    path = _store(tmp_path / "a.zarr")
    data = store_data(open_store(path).select())
    [episode] = open_store(path).select().episode_ids()[:1].tolist()
    for name in ("near-copy", "rough"):
        _pasted(run, data.commands(Finding(name, "warning", "", 1), [episode]))
    [row] = json.loads(
        run(
            "query",
            path,
            "--where",
            "doctor_rough",
            "--list",
            "--show",
            "doctor_near_copy,doctor_rough",
            "--json",
        ).out
    )
    assert row["doctor_near_copy"] is row["doctor_rough"] is True


def test_a_file_is_examined_and_then_mended_by_an_import(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("h5py")
    monkeypatch.chdir(tmp_path)
    store = open_store(_store(tmp_path / "a.zarr", faults.copy))
    export_selection("d4rl", store.select(), "run 1.hdf5")
    faults.put(tmp_path / "run 1.hdf5", "d4rl", "action", 7, float("nan"))
    shown = run("doctor", "run 1.hdf5", "--format", "d4rl", "--set", "horizon=0").out
    assert "gaitforge import d4rl 'run 1.hdf5' 'run 1.zarr' --set horizon=0\n" in shown
    outcome = run("doctor", "run 1.hdf5", "--json")
    assert outcome.code == 1
    record = json.loads(outcome.out)
    assert record["format"] == "d4rl"
    for each in record["findings"]:
        _pasted(run, each["commands"])
    assert run("doctor", "run 1.zarr").code == 0


def test_an_import_and_a_card_say_what_they_see(run: Run, tmp_path: Path) -> None:
    store = open_store(_store(tmp_path / "a.zarr", faults.constant_channel))
    export_selection("lerobot", store.select(), tmp_path / "folder")
    outcome = run("import", "lerobot", tmp_path / "folder", tmp_path / "b.zarr")
    assert "note: warning, constant-channel: joint_vel[1] never changes: 0" in outcome.out
    assert run("card", tmp_path / "b.zarr", "--no-pictures").code == 0
    for name in ("card.html", "card.md"):
        assert "joint_vel[1] never changes" in (tmp_path / "b.zarr.card" / name).read_text()


def test_wrong_input_is_refused(run: Run, tmp_path: Path) -> None:
    assert_refused(run("doctor", tmp_path / "nothing"), "no store, file or folder at")
    assert_refused(run("doctor", tmp_path), "no format reads it; give --format, one of d4rl")
    assert_refused(run("doctor", tmp_path, "--format", "zip"), "unknown format 'zip'")
    assert_refused(run("doctor", tmp_path, "--set", "horizon=3"), "give --format too")
    faults.Store.create(tmp_path / "empty.zarr", faults.SCHEMA)
    assert_refused(run("doctor", tmp_path / "empty.zarr"), "no episode to examine")
