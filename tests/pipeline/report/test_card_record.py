"""What a dataset card says, against the catalog and the arrays themselves."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gaitforge.datasets import DatasetError, Store
from gaitforge.pipeline.report.card import BINS, card_record, histogram
from tests.datasets.making import part_input, small_schema, small_store

RANDOMISATION = {
    "friction": {"unit": "1", "low": 0.3, "high": 1.25},
    "lag": {"unit": "substep", "low": 0, "high": 3},
    "never_stored": {"unit": "kg", "low": 0, "high": 1},
}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    schema = small_schema(attributes={"randomisation": RANDOMISATION})
    made = Store.create(tmp_path / "s.zarr", schema)
    for number, lengths in enumerate([(5, 1, 9, 30, 2, 8), (130, 64)]):
        given = part_input(lengths, first_episode=10 * number)
        given["episodes"]["lag"] = np.arange(len(lengths)) % 4
        if number:
            given["episodes"]["expert_hash"] = ["1" * 8] * len(lengths)
            given["episodes"]["friction"][0] = 1.5
        made.write_part(f"part-{number:03d}", **given)
    return made


def test_the_record_is_plain_json_and_adds_up(store: Store) -> None:
    record = card_record(store.select())
    assert json.loads(json.dumps(record, allow_nan=False)) == record
    assert record["name"] == "s.zarr"
    assert record["store"] == asdict(store.info())
    assert record["selection"]["whole_store"]
    (total,) = record["total"]
    for groups in (record["pairs"], record["cells"], record["parts"]):
        assert sum(group["episodes"] for group in groups) == total["episodes"] == 8
        assert sum(group["steps"] for group in groups) == total["steps"] == 249
    for name in ("returns", "lengths"):
        assert sum(record[name]["counts"]) == 8
    assert (record["lengths"]["min"], record["lengths"]["max"]) == (1, 130)


def test_draws_are_shown_against_their_declared_range(store: Store) -> None:
    draws = {draw["name"]: draw for draw in card_record(store.select(), channels=False)["draws"]}
    assert set(draws) == {"friction", "lag"}
    friction, lag = draws["friction"], draws["lag"]
    assert (friction["low"], friction["high"], friction["outside"]) == (0.3, 1.25, 1)
    assert friction["edges"][0] == 0.3
    assert friction["edges"][-1] == friction["max"] == 1.5
    assert sum(friction["counts"]) == 8
    assert lag["counts"] == [3, 3, 1, 1]
    assert lag["whole"]
    assert (lag["outside"], lag["unit"]) == (0, "substep")


def test_provenance_counts_who_made_what(store: Store) -> None:
    made = card_record(store.select(), channels=False)["provenance"]
    assert made["experts"] == [
        {"expert": "ppo", "expert_hash": "0" * 8, "episodes": 6},
        {"expert": "ppo", "expert_hash": "1" * 8, "episodes": 2},
    ]
    assert made["simulators"] == [
        {"simulator": "mujoco", "simulator_version": "3.17.0", "episodes": 8}
    ]
    assert made["robots"] == [{"robot": "aliengo", "episodes": 8}]
    assert made["seeds"] == {"distinct": 8, "min": 0, "max": 77}


def test_channels_have_their_statistics(store: Store) -> None:
    selection = store.select(terrain="rough")
    record = card_record(selection)
    rows = selection.read("obs").astype(np.float64)
    found = [each for each in record["channels"] if each["field"] == "obs"]
    assert [each["channel"] for each in found] == [
        "gravity[0]", "gravity[1]", "gravity[2]", "command[0]", "command[1]",
    ]  # fmt: skip
    for index, each in enumerate(found):
        assert each["mean"] == pytest.approx(rows[:, index].mean())
        assert each["q99"] == pytest.approx(np.quantile(rows[:, index], 0.99), rel=1e-14)
        assert each["max"] == rows[:, index].max()
        assert each["unit"] == "rad"
    assert not record["selection"]["whole_store"]
    assert card_record(selection, channels=False)["channels"] == []


def test_spectra_have_every_block_and_sum_to_one(store: Store) -> None:
    selection = store.select()
    record = card_record(selection)
    blocks = [(each["field"], each["block"], each["channels"]) for each in record["spectra"]]
    assert blocks == [("obs", "gravity", 3), ("obs", "command", 2), ("action", "action", 2)]
    energy = selection.spectral_energy("obs", 128)
    for each in record["spectra"]:
        assert (each["window"], each["windows"]) == (128, energy.windows)
        assert sum(each["energy_share"]) == pytest.approx(1.0)
        below = np.array(each["frequency_hz"]) < each["energy_95_hz"]
        assert np.array(each["energy_share"])[below].sum() < 0.95
    gravity = energy.share[:, :3].mean(axis=1)
    np.testing.assert_allclose(record["spectra"][0]["energy_share"], gravity)
    short = card_record(selection, spectrum=16)["spectra"][0]
    assert (len(short["frequency_hz"]), short["window"]) == (9, 16)
    with pytest.raises(DatasetError, match="n must be at most 130"):
        card_record(selection, spectrum=131)
    assert card_record(selection, channels=False)["spectra"] == []


def test_histograms_of_whole_numbers_have_a_bin_each() -> None:
    made = histogram(np.array([2.0, 2.0, 5.0]), low=1)
    assert (made["edges"], made["counts"]) == ([0.5, 1.5, 2.5, 3.5, 4.5, 5.5], [0, 2, 0, 0, 1])
    assert len(histogram(np.array([0.0, 0.5]))["counts"]) == BINS


@pytest.mark.parametrize("values", [[], [3.25], [3.25, 3.25], [-1e300, 1e300]])
def test_odd_sets_of_values_have_a_histogram(values: list[float]) -> None:
    made: dict[str, Any] = histogram(np.array(values))
    assert sum(made["counts"]) == len(values)
    assert len(made["edges"]) == len(made["counts"]) + 1
    assert np.all(np.diff(made["edges"]) > 0)


def test_an_empty_selection_has_no_card(tmp_path: Path) -> None:
    selection = small_store(tmp_path / "s").select().where("length < 0")
    with pytest.raises(DatasetError, match="the selection is empty"):
        card_record(selection)
