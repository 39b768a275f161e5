"""What an episode of each family of D4RL's tasks means, and which file is of which task."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gaitforge.datasets import Selection, open_store
from gaitforge.datasets.formats.transfer.importing import import_source
from gaitforge.plugins.gym.d4rl.d4rl_tasks import TASKS, named_dataset
from gaitforge.plugins.gym.tests.d4rl.test_d4rl import rows, write

UMAZE = "Ant_maze_u-maze_noisy_multistart_False_multigoal_False_sparse"
LARGE = "Ant_maze_hardest-maze_noisy_multistart_True_multigoal_True_sparse_fixed"


def imported(path: Path) -> tuple[Selection, str]:
    report = import_source("d4rl", path, path.with_suffix(".zarr"))
    return open_store(path.with_suffix(".zarr")).select(), " ".join(report.carried.notes)


def successes(selection: Selection) -> list[bool]:
    return selection.episodes().column("success").to_pylist()


def test_a_terminal_of_an_antmaze_is_the_goal(tmp_path: Path) -> None:
    arrays = rows(2030)
    arrays["rewards"] = np.zeros(2030, "f4")
    arrays["terminals"][[29]] = True
    arrays["rewards"][29] = 1.0
    arrays["timeouts"][[1029, 2029]] = True
    arrays["rewards"][1100] = 1.0  # reached the goal, though nothing marks it
    found, notes = imported(write(tmp_path / f"{UMAZE}.hdf5", arrays))
    assert found.lengths.tolist() == [30, 1000, 1000]
    assert successes(found) == [True, False, True]
    table = found.episodes()
    assert table.column("normalised_return").to_pylist() == [100.0, 0.0, 100.0]
    assert table.column("truncated").to_pylist() == [False, True, True]
    assert table.column("task").to_pylist()[0] == "antmaze-umaze"
    assert found.store.schema.control_dt_s == 0.1
    assert "success: a terminal or a reward of 1, both of which mean the goal" in notes


def test_the_kitchen_is_solved_by_four_subtasks_and_not_by_its_terminals(tmp_path: Path) -> None:
    arrays = rows(700)
    for key in ("timeouts", "next_observations"):
        del arrays[key]
    arrays["terminals"][[299, 499, 699]] = True  # the first is longer than the horizon of 280
    arrays["rewards"] = np.repeat(np.array([1, 3, 4], "f4"), [300, 200, 200])
    arrays["infos"] = np.repeat(np.arange(3), [300, 200, 200])
    path = tmp_path / "kitchen_microwave_kettle_light_slider-v0.hdf5"
    found, notes = imported(write(path, arrays))
    assert found.lengths.tolist() == [300, 200, 200]
    assert successes(found) == [False, False, True]
    table = found.episodes()
    assert table.column("quality").to_pylist() == ["partial"] * 3
    assert table.column("terminated").to_pylist() == [True] * 3
    assert "normalised_return" not in table.column_names
    assert "success: a reward of 4" in notes
    assert "no normalised_return" in notes
    assert found.store.schema.attributes["reference_returns"] == {"random": 0.0, "expert": 4.0}


@pytest.mark.parametrize("kind", ["sparse", "dense"])
def test_a_point_at_its_goal_has_solved_the_maze(kind: str, tmp_path: Path) -> None:
    arrays = rows(600)
    arrays["terminals"][:] = False
    arrays["timeouts"][[299, 599]] = True
    distances = np.linspace(5.0, 0.6, 600)
    distances[450] = 0.45
    dense = np.exp(-distances)
    arrays["rewards"] = (dense if kind == "dense" else distances <= 0.5).astype("f4")
    found, notes = imported(write(tmp_path / f"maze2d-umaze-{kind}-v1.hdf5", arrays))
    assert successes(found) == [False, True]
    assert "within 0.5 m of the goal" in notes


GOALS = {"pen": (20, 60.9, 11.0), "hammer": (25, 99.0, 27.0), "door": (25, 19.9, 10.0)}
GOALS["relocate"] = (25, 10.5, 1.0)
"""Task -> steps to hold more than, a reward at the goal, the largest reward elsewhere."""


@given(task=st.sampled_from(sorted(GOALS)), held=st.integers(0, 60), dropped=st.booleans())
def test_adroit_holds_its_goal(task: str, held: int, dropped: bool) -> None:
    steps, at_goal, elsewhere = GOALS[task]
    first = np.full(100, elsewhere, "f4")
    first[:held] = at_goal
    second = np.full(100, elsewhere, "f4")
    solved = TASKS[task].success.solved(
        np.concatenate([first, second]), np.array([100, 100]), np.array([dropped, dropped])
    )
    assert solved.tolist() == [held > steps, False]


@given(st.lists(st.booleans(), min_size=1, max_size=6))
def test_a_terminal_of_locomotion_is_a_fall(terminated: list[bool]) -> None:
    ended, lengths = np.array(terminated), np.full(len(terminated), 2)
    solved = TASKS["hopper"].success.solved(np.ones(2 * len(ended)), lengths, ended)
    assert np.array_equal(solved, ~ended)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("hopper_medium", ("hopper", "medium")),
        ("walker_mixed", ("walker2d", "medium-replay")),
        ("halfcheetah_medium_expert-v2", ("halfcheetah", "medium-expert")),
        ("ant_full_replay-v2", ("ant", "full-replay")),
        ("pen-v0_demos_clipped", ("pen", "human")),
        ("door-demos-v0-bc-combined", ("door", "cloned")),
        ("relocate-expert-v1", ("relocate", "expert")),
        ("Ant_maze_mine_noisy", ("", "ant-maze-mine-noisy")),
        (UMAZE, ("antmaze-umaze", "")),
        (LARGE, ("antmaze-large", "diverse")),
        (
            "Ant_maze_medium_noisy_multistart_True_multigoal_False_sparse",
            ("antmaze-medium", "play"),
        ),
        ("antmaze-medium-play-v2", ("antmaze-medium", "play")),
        ("mini_kitchen_microwave_kettle_light_slider-v0", ("kitchen", "complete")),
        ("kitchen_microwave_kettle_bottomburner_light-v0", ("kitchen", "mixed")),
        ("kitchen-mixed-v0", ("kitchen", "mixed")),
        ("maze2d-umaze-sparse", ("maze2d-umaze-v0", "sparse")),
        ("maze2d-umaze-v0", ("maze2d-umaze-v0", "")),
        ("maze2d-umaze-v1", ("maze2d-umaze", "")),
        ("maze2d-open-dense", ("maze2d-open-dense", "dense")),
        ("maze2d-eval-large-dense-v1", ("maze2d-eval-large-dense", "dense")),
    ],
)
def test_names_of_files_tell_task_and_quality(name: str, expected: tuple[str, str]) -> None:
    assert named_dataset(f"{name}.hdf5") == expected
    assert expected[0] in {"", *TASKS}


def test_names_of_observations_tile_them() -> None:
    widths = {"hopper": 11, "halfcheetah": 17, "walker2d": 17, "pen": 45, "hammer": 46, "door": 39}
    widths |= {"relocate": 39, "antmaze-large": 29, "kitchen": 60, "maze2d-medium-v0": 4}
    for task, width in widths.items():
        bounds = [bound for each in TASKS[task].obs_slices.values() for bound in each]
        assert (bounds[0], bounds[-1]) == (0, width)
        assert bounds[1:-1:2] == bounds[2:-1:2]
