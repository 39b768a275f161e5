"""Domain randomisation: distributions, plans' ranges, and draws."""

import json
from math import ceil, floor, isfinite
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gaitforge.collectors.legged.episodes import EpisodeSpec, draw_episode
from gaitforge.collectors.robots.robot import RobotError, list_robots, load_robot
from gaitforge.collectors.scenarios.quantities import QUANTITIES
from gaitforge.collectors.scenarios.randomisation import (
    DEFAULT,
    DRAW_INDEX,
    DRAW_NAMES,
    DRAWS,
    GROUPS,
    N_DRAWS,
    N_STANDARD,
    Distribution,
    Randomisation,
    check_draws,
    nominal_draws,
    standardised,
)

ROBOT = load_robot()
HEAVY = Randomisation.parsed({"preset": "heavy"})
numbers = st.floats(-100, 100).map(lambda x: round(x, 6))


def drawn(randomisation: Randomisation, seed: int) -> np.ndarray:
    return randomisation.draw(np.random.default_rng(seed), seed, ROBOT)


@st.composite
def distributions(draw: st.DrawFn) -> str:
    low, high = sorted(draw(st.tuples(numbers, numbers)))
    kind = draw(st.sampled_from(["", "normal", "log", "choice"]))
    if kind == "log":
        low, high = abs(low) + 0.1, abs(low) + abs(high) + 0.2
    if kind == "normal":
        return f"normal:{draw(numbers)!r}:{draw(st.floats(0.01, 10))!r}:{low!r}:{high!r}"
    return f"{kind}:{low!r}:{high!r}".removeprefix(":")


@given(distributions(), st.floats(0, 1, exclude_max=True))
def test_a_distribution_reads_what_it_writes_and_draws_within_its_ends(
    text: str, unit: float
) -> None:
    made = Distribution.parsed(text)
    assert Distribution.parsed(str(made)) == made
    assert made.low <= made.at(unit) <= made.high
    assert made.at(0.0) <= made.at(unit) or made.kind == "choice"


def test_distributions_have_the_shape_of_their_names() -> None:
    units = (np.arange(4000) + 0.5) / 4000
    log = [Distribution.parsed("log:0.1:10").at(u) for u in units]
    assert np.median(log) == pytest.approx(1.0, rel=1e-3)
    normal = [Distribution.parsed("normal:1:0.5:0:2").at(u) for u in units]
    assert np.mean(normal) == pytest.approx(1.0, abs=1e-3)
    # Cut off two deviations from the mean: 0.88 of the deviation is left.
    assert np.std(normal) == pytest.approx(0.5 * 0.880, rel=1e-2)
    choice = [Distribution.parsed("choice:3:1:2").at(u) for u in units]
    assert np.unique(choice, return_counts=True)[1].tolist() == [1334, 1333, 1333]


@pytest.mark.parametrize("text", ["", "a", "1:2:3", "3:1", "nan", "log:0:1", "normal:0:0:0:1"])
def test_what_is_no_distribution_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"distribution|end|above 0"):
        Distribution.parsed(text)


@pytest.mark.parametrize("randomisation", [DEFAULT, HEAVY], ids=["default", "heavy"])
def test_draws_lie_within_their_ranges_cover_them_and_whole_ones_are_whole(
    randomisation: Randomisation,
) -> None:
    draws = np.stack([drawn(randomisation, seed) for seed in range(1500)])
    low, high = randomisation.ends(ROBOT)
    assert ((low <= draws) & (draws <= high)).all()
    for draw, values, least, most in zip(DRAWS, draws.T, low, high, strict=True):
        if draw.quantity.whole:
            seen, counts = np.unique(values, return_counts=True)
            assert seen.tolist() == list(range(floor(least), ceil(most) + 1)), draw.name
        elif most > least:
            counts, _ = np.histogram(values, 8, (least, most))
        else:
            continue
        assert counts.min() > 0.7 * counts.mean(), draw.name


def test_every_quantity_has_a_nominal_value_a_source_and_ranges_that_are_allowed() -> None:
    assert len(set(DRAW_NAMES)) == N_DRAWS
    for quantity in QUANTITIES:
        assert quantity.nominal in quantity.allowed, quantity.name
        assert all((quantity.source, quantity.why, quantity.meaning))
    none = Randomisation.parsed({"preset": "none"})
    assert drawn(none, 3).tolist() == nominal_draws().tolist()


def test_the_page_lists_every_quantity_as_it_is() -> None:
    page = (Path(__file__).parents[3] / "docs" / "howto" / "randomisation.md").read_text()
    for each in QUANTITIES:
        row = f"| `{each.group}` | {each.unit} | `{each.default}` | `{each.heavy}` | "
        assert row in page, each.group
        assert f"| {each.source} |" in page, each.group


@given(st.sets(st.sampled_from(sorted(GROUPS))), st.integers(0, 2**62))
def test_changing_a_quantity_changes_no_other_draw_and_no_other_part_of_the_episode(
    changed: set[str], seed: int
) -> None:
    heavy = {each.group: each.heavy for each in QUANTITIES if each.group in changed}
    randomisation = Randomisation.parsed(heavy)
    spec = EpisodeSpec(0, "rough", 4, "run", seed, action_noise=0.5)
    usual = draw_episode(spec, ROBOT)
    other = draw_episode(spec, ROBOT, randomisation=randomisation)
    kept = [i for i, draw in enumerate(DRAWS) if draw.quantity.group not in changed]
    assert (usual.draws[kept] == other.draws[kept]).all()
    for name in ("command", "offset_xy", "observation_noise", "action_noise"):
        np.testing.assert_array_equal(getattr(usual, name), getattr(other, name), name)
    assert (usual.yaw, usual.terrain_variant) == (other.yaw, other.terrain_variant)
    assert usual.push_step in (-1, other.push_step)  # heavy pushes more often


@pytest.mark.parametrize("robot", list_robots())
def test_percentages_are_shares_of_the_robots_own_size(robot: str) -> None:
    card = load_robot(robot)
    randomisation = Randomisation.parsed({"payload_kg": "10%", "payload_x_m": "-50%"})
    draws = randomisation.draw(np.random.default_rng(0), 0, card)
    assert draws[DRAW_INDEX["payload_kg"]] == pytest.approx(0.1 * card.mass_kg)
    half = card.trunk_half_size_m[0]
    assert draws[DRAW_INDEX["payload_x_m"]] == pytest.approx(-0.5 * half)
    declared = randomisation.declared(card, load_robot())["payload_kg"]
    assert declared["distribution"] == "10%"
    assert isfinite(float(str(declared["high"])))


def test_a_randomisation_is_written_shortest_and_read_again(tmp_path: Path) -> None:
    values = {"friction": 0.2, "kp_factor": "0.9:1.1", "joint_offset_rad": "none"}
    made = Randomisation.parsed({**values, "joint_offset_3_rad": "0.01"})
    assert "kp_factor" not in made.changed  # the default
    assert len([name for name in made.written() if name.startswith("joint_offset")]) == 12
    for each in (made, HEAVY, Randomisation.parsed(values)):
        assert Randomisation.parsed(each.written()) == each
        assert Randomisation.of_schema(each.declared(ROBOT)) == each
    assert Randomisation.parsed(values).written() == {"friction": "0.2", "joint_offset_rad": "0"}
    (tmp_path / "ice.json").write_text(json.dumps({"friction": "0.05:0.2", "payload_kg": 1}))
    ice = Randomisation.parsed({"payload_kg": "none", "preset": str(tmp_path / "ice.json")})
    assert ice.written() == {"friction": "0.05:0.2"}


def test_a_quantity_beside_a_preset_counts_for_the_draws_that_the_preset_has(
    tmp_path: Path,
) -> None:
    preset = {"joint_offset_3_rad": "0.3", "sensor_noise_joint_vel": "2"}
    (tmp_path / "broken.json").write_text(json.dumps(preset))
    values = {"preset": str(tmp_path / "broken.json"), "joint_offset_rad": "none"}
    nominal = Randomisation.parsed(values).written()
    assert nominal == {"joint_offset_rad": "0", "sensor_noise_joint_vel": "2"}
    single = Randomisation.parsed(values | {"joint_offset_5_rad": "0.1"})
    assert str(single.changed["joint_offset_5_rad"]) == "0.1"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"frictoin": 1}, "did you mean 'friction'"),
        ({"friction": "0:1"}, "0 is not above 0, at most 5: feet without friction cannot stand"),
        ({"friction": "5%"}, "only masses and places"),
        ({"action_lag_substeps": "0:1.5"}, "whole numbers"),
        ({"action_lag_substeps": "choice:0:1.5:3"}, "whole numbers, not 'choice:0:1.5:3'"),
        ({"observation_delay_steps": "choice:0:0.5:1"}, "whole numbers"),
        ({"action_lag_substeps": "log:1:2.5"}, "whole numbers"),
        ({"action_lag_substeps": "normal:1:1:0:2.5"}, "whole numbers"),
        ({"action_lag_substeps": "1.5"}, "whole numbers"),
        ({"action_lag_substeps": "30"}, "24 substeps of targets are kept"),
        ({"preset": "light"}, "there are none, default, heavy"),
        ({"push_chance": "x"}, "'x' is no distribution; such are: none, 0.2, 0.1:0.3"),
    ],
)
def test_what_cannot_be_randomised_is_refused_with_the_reason(
    values: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Randomisation.parsed(values)


def test_from_python_a_whole_quantity_takes_whole_numbers_only() -> None:
    with pytest.raises(ValueError, match="action_lag_substeps: whole numbers"):
        Randomisation({"action_lag_substeps": Distribution("choice", (0.0, 1.5, 3.0))})
    whole = Randomisation({"action_lag_substeps": Distribution("normal", (1.5, 0.7, 0.0, 3.0))})
    index = DRAW_INDEX["action_lag_substeps"]
    assert {drawn(whole, seed)[index] for seed in range(50)} <= {0.0, 1.0, 2.0, 3.0}


def test_standardised_draws_run_from_minus_one_to_one() -> None:
    low, high = DEFAULT.ends(ROBOT)
    np.testing.assert_array_equal(standardised(low), -1.0)
    np.testing.assert_array_equal(standardised(high), 1.0)
    assert standardised(np.stack([low, high])).shape == (2, N_STANDARD)
    assert standardised(low).dtype == np.float32


@pytest.mark.parametrize("name", DRAW_NAMES)
def test_a_draw_has_to_be_a_number_that_a_robot_can_have(name: str) -> None:
    draws = nominal_draws()
    check_draws(ROBOT, 13.0, draws)
    for value in (np.nan, np.inf, -np.inf):
        draws[DRAW_INDEX[name]] = value
        with pytest.raises(RobotError, match=f"aliengo.*{name}"):
            check_draws(ROBOT, 13.0, draws)


def test_an_offset_leaves_the_trunk_some_mass() -> None:
    lowest, _ = DEFAULT.ends(ROBOT)
    check_draws(ROBOT, 1.01, lowest)
    with pytest.raises(RobotError, match="base_mass_offset_kg -1 leaves 0 of 1 kg of 'trunk'"):
        check_draws(ROBOT, 1.0, lowest)
