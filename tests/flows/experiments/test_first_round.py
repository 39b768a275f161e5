"""What rounds of corrections begin with, on a store that has seen some before."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from gaitforge.datasets import open_store
from gaitforge.datasets.formats.transfer.exporting import export_selection
from gaitforge.datasets.formats.transfer.importing import import_source
from gaitforge.flows.experiments.claim import Claim, claim
from gaitforge.flows.experiments.plan import Experiment
from gaitforge.flows.experiments.runs import note_rounds, round_on_store
from gaitforge.flows.progress import Silent
from gaitforge.flows.stages.collect import collect
from gaitforge.flows.tasks.legged_evaluation import driven_by
from gaitforge.pipeline.presets.choices import chosen_claim
from tests.flows.experiments.still import STILL
from tests.flows.experiments.test_rounds import BASE, PLAN

OTHER = replace(PLAN, learners={"other": {"model": "mlp"}})
FIRST = tuple(BASE.part_ids())


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Demonstrations, then a round of corrections with its part of plain imitation."""
    path = tmp_path_factory.mktemp("store") / "legged.zarr"
    collect(BASE, path, Silent())
    first = claimed_by(PLAN, path, path.parent / "out").experiment
    assert first.corrections is not None
    plain = round_on_store(first.corrections, path, 1)
    collect(plain, path, Silent())
    collect(driven_by(plain, STILL, plain.expert, share=0.3, stretch=12), path, Silent())
    assert len(open_store(path).parts()) == 3
    return path


def claimed_by(
    plan: Experiment, store: Path, out: Path, *settings: str, said: list[str] | None = None
) -> Claim:
    """What `gaitforge dagger` makes of a plan on a store."""
    say = [].append if said is None else said.append
    return chosen_claim("dagger", plan, (str(store),), {}, settings, out, say)


def test_another_dagger_begins_with_the_demonstrations_and_says_so(
    store: Path, tmp_path: Path
) -> None:
    said: list[str] = []
    made = claimed_by(OTHER, store, tmp_path / "out", said=said)
    assert made.experiment.select.parts == FIRST
    [line] = said
    assert all(part in line for part in open_store(store).parts() if part not in FIRST)
    claim(made, tmp_path / "out")
    assert claimed_by(OTHER, store, tmp_path / "out") == made, "again, it is the same experiment"
    # Without records, as a copy: the catalog tells who drove, names tell the plain parts.
    alone = tmp_path / "alone.zarr"
    shutil.copytree(store, alone)
    assert claimed_by(OTHER, alone, tmp_path / "x").experiment.select.parts == FIRST


def test_plain_rounds_of_another_size_are_known_by_the_records(store: Path, tmp_path: Path) -> None:
    copy = tmp_path / store.name
    shutil.copytree(store, copy)
    shutil.copytree(f"{store}.records", f"{copy}.records")
    assert OTHER.corrections is not None
    collects = OTHER.corrections.collect
    larger = replace(collects, grid=replace(collects.grid, episodes_per_part=6))
    plan = replace(OTHER, corrections=replace(OTHER.corrections, collect=larger))
    assert len(claimed_by(plan, copy, tmp_path / "out").experiment.select.parts) == 2
    note_rounds(claimed_by(PLAN, copy, tmp_path / "first").experiment, copy)
    assert claimed_by(plan, copy, tmp_path / "out").experiment.select.parts == FIRST


def test_corrections_within_a_part_of_an_import_are_left_out(
    store: Path, tmp_path: Path, rows_format: str
) -> None:
    export_selection(rows_format, open_store(store).select(), tmp_path / "x")
    imported = tmp_path / "imported.zarr"
    import_source(rows_format, tmp_path / "x", imported)
    assert len(open_store(imported).parts()) == 1
    made = claimed_by(OTHER, imported, tmp_path / "out")
    drivers = made.experiment.select.select(imported).episodes("policy")["policy"].to_pylist()
    assert set(drivers) == {None}
    assert len(drivers) == 8
    claim(made, tmp_path / "out")
    assert claimed_by(OTHER, imported, tmp_path / "out") == made


def test_a_user_chooses_parts_and_corrections_alone_are_refused(
    store: Path, tmp_path: Path, rows_format: str
) -> None:
    parts = open_store(store).select().where("policy is not null").episodes("part")["part"]
    driven = parts[0].as_py()
    made = claimed_by(OTHER, store, tmp_path / "out", f"select.parts={driven}")
    assert made.experiment.select.parts == (driven,)
    export_selection(rows_format, open_store(store).select().of_parts([driven]), tmp_path / "x")
    import_source(rows_format, tmp_path / "x", tmp_path / "alone.zarr")
    with pytest.raises(ValueError, match=r"are corrections of policies; choose .*select.parts="):
        claimed_by(OTHER, tmp_path / "alone.zarr", tmp_path / "out")
