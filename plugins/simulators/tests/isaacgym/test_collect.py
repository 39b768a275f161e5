"""The same plan collected through Isaac Gym's worker, on its double, and through MuJoCo itself."""

import json
from dataclasses import replace

import numpy as np
import pytest

from gaitforge.collectors.legged.data import CollectionGrid
from gaitforge.datasets import Selection, open_store
from gaitforge.flows.progress import Silent
from gaitforge.flows.stages.collect import collect
from gaitforge.flows.tasks.legged import LeggedPlan
from gaitforge.plugins.simulators.tests.isaacgym.double import use_the_double

PLAN = LeggedPlan(
    grid=CollectionGrid(
        terrains=("flat", "rough", "slope"),
        skills=("stand", "run", "squeeze"),
        levels=(2,),
        parts=2,
        episodes_per_part=36,
    ),
    robots=36,
    threads=1,
)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Selection]:
    """All episodes, by simulator."""
    folder = tmp_path_factory.mktemp("both")
    with pytest.MonkeyPatch.context() as patch:
        use_the_double(patch)
        for sim in ("mujoco", "isaacgym"):
            collect(replace(PLAN, sim=sim), folder / sim, Silent())
    return {sim: open_store(folder / sim).select() for sim in ("mujoco", "isaacgym")}


def column(selection: Selection, name: str) -> np.ndarray:
    return selection.episodes().column(name).to_numpy(zero_copy_only=False)


@pytest.mark.slow
def test_the_schema_is_the_same_byte_for_byte(both: dict[str, Selection]) -> None:
    direct, gym = (json.dumps(each.store.schema.to_json()).encode() for each in both.values())
    assert direct == gym


@pytest.mark.slow
def test_the_same_episodes_were_asked_for(both: dict[str, Selection]) -> None:
    direct, gym = both.values()
    for name in ("terrain", "skill", "level", "seed"):
        assert column(direct, name).tolist() == column(gym, name).tolist()
    assert set(column(gym, "simulator")) == {"isaacgym"}


@pytest.mark.slow
@pytest.mark.parametrize("what", ["return", "success", "length"])
def test_outcomes_differ_by_no_more_than_noise(both: dict[str, Selection], what: str) -> None:
    direct, gym = (column(each, what).astype(np.float64) for each in both.values())
    noise = np.sqrt(direct.var() / len(direct) + gym.var() / len(gym))
    assert abs(direct.mean() - gym.mean()) < 2 * noise + 1e-9
    assert direct.mean() > 0


@pytest.mark.slow
def test_the_friction_that_was_simulated_is_stored(both: dict[str, Selection]) -> None:
    direct, gym = (column(each, "friction") for each in both.values())
    assert len(np.unique(gym.round(9))) <= 62 < len(np.unique(direct))
    assert np.abs(gym - direct).max() < (1.25 - 0.3) / 61 / 2 + 1e-9
