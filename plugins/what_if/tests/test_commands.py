"""The commands: with recorded versions, with runners, and what they refuse."""

from pathlib import Path

import pytest

from gaitforge.collectors.physics.mujoco import backend
from gaitforge.datasets import open_store
from gaitforge.pipeline.cli.main import main
from tests.flows.test_versions import (
    OTHER,
    PLAN,
    commands_of_the_other,
    stores_of_two_versions,
)
from tests.pipeline.command_line import Run, assert_refused
from tests.pipeline.conftest import store

__all__ = ["store"]


@pytest.mark.slow
def test_each_part_gets_its_field_from_the_version_that_made_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first, _ = PLAN.part_ids()
    stores = stores_of_two_versions(tmp_path, monkeypatch)
    mixed = tmp_path / "s.zarr"
    assert main(["dataset", "merge", *map(str, stores), str(mixed)]) == 0
    # The other version is a process with a folder before its packages; here it is this version.
    ran = commands_of_the_other(tmp_path, monkeypatch)
    derive = ["derive", str(mixed), "--field", "state"]
    assert main(derive) == 2
    assert f"part {first} was made by mujoco {OTHER}" in capsys.readouterr().err
    # The other version's part is then missing, and the field is not added.
    assert main([*derive, "--with-recorded-versions"]) == 0
    assert "state" not in open_store(mixed).select().episode(0)
    assert ran == [[*derive, "--simulator-version", OTHER]]
    with monkeypatch.context() as patch:
        patch.setattr(backend.MujocoBackend, "version", OTHER)
        patch.setattr("gaitforge.plugins.what_if.added_fields.version", lambda _: OTHER)
        assert main(ran[0]) == 0
    assert "state" in open_store(mixed).select().episode(0)


def test_a_runner_shows_the_script_of_a_derivation_and_has_no_job_to_cancel(
    run: Run, store: Path
) -> None:
    derive = ["derive", store, "--field", "state", "--runner", "slurm"]
    before = {path: path.stat().st_mtime_ns for path in store.parent.rglob("*")}
    shown = run(*derive, "--dry-run", "--time", "1:00:00")
    assert shown.code == 0, shown.err
    assert shown.out.count("#!/bin/bash\n") == 1
    assert "--time=1:00:00\n" in shown.out
    cancelled = run(*derive, "--cancel")
    assert cancelled.code == 0, cancelled.err
    assert "no job to cancel" in cancelled.err
    assert {path: path.stat().st_mtime_ns for path in store.parent.rglob("*")} == before


def test_what_has_no_effect_and_what_nothing_is_evaluated_on_is_refused(
    run: Run, store: Path
) -> None:
    refused = run("derive", store, "--field", "state", "--unit", "m")
    assert_refused(refused, "--unit has no effect")
    refused = run("evaluate", "random", "--task", "derive")
    assert_refused(refused, "no policy is evaluated on task 'derive'")


def test_the_commands_are_listed_and_have_forms(run: Run) -> None:
    from gaitforge.pipeline.cli.deployments import FLOWS

    assert {"derive", "counterfactual", "dataset-relabel"} <= FLOWS.keys()
    helped = " ".join(run("--help").out.split())
    for line in (
        "derive add a field to stored episodes by exact replay",
        "counterfactual simulate stored episodes again with one thing changed",
    ):
        assert line in helped
    actions = run("dataset", "--help").out
    assert "give the present version a new reward" in actions
