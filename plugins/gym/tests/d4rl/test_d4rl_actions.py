"""The actions of a D4RL file are those that lead to its rewards and next observations."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from gaitforge.collectors.legged.environment import LeggedEnvironment
from gaitforge.collectors.legged.replaying import replay_environment, stored_episodes
from gaitforge.datasets import Selection, Store, open_store
from gaitforge.datasets.formats.transfer.exporting import export_selection
from gaitforge.flows.progress import Silent
from gaitforge.flows.stages.collect import collect
from gaitforge.flows.tasks.legged import LeggedPlan
from tests.flows.stages.test_executed_actions import GRID


@pytest.fixture(scope="module")
def noisy(tmp_path_factory: pytest.TempPathFactory) -> Store:
    path = tmp_path_factory.mktemp("executed") / "legged.zarr"
    collect(LeggedPlan(grid=GRID, robots=8, threads=1), path, Silent())
    return open_store(path)


def test_exported_actions_lead_to_the_exported_observations_and_rewards(
    noisy: Store, tmp_path: Path
) -> None:
    """The law: executed in the simulator, the actions of a file give its other columns."""
    h5py = pytest.importorskip("h5py")
    selection = noisy.select().where("action_noise > 0")
    selection = selection.with_rows(selection.rows[:2])
    followed = {}
    for actions in ("", "clean"):
        options = {"actions": actions, "notes": False}
        export_selection("d4rl", selection, tmp_path / f"{actions}.hdf5", options)
        with h5py.File(tmp_path / f"{actions}.hdf5") as file:
            arrays = {key: file[key][:] for key in ("actions", "rewards", "next_observations")}
        with closing(replay_environment(selection, 1, threads=1)) as env:
            followed[actions] = [*followed_by(env, selection, arrays)]
    assert all(followed[""])
    assert not any(followed["clean"])


def followed_by(
    env: LeggedEnvironment, selection: Selection, arrays: dict[str, np.ndarray]
) -> Iterator[bool]:
    """Whether each episode's exported actions give its rewards and next observations."""
    first = 0
    for episode in stored_episodes(selection):
        env.reset(np.arange(1), [episode.spec(noise=False)])
        same = True
        for row in range(first, first + len(episode.action)):
            after = env.step(arrays["actions"][row : row + 1])
            same &= bool(after.reward[0] == arrays["rewards"][row])
            same &= bool((after.observation.policy[0] == arrays["next_observations"][row]).all())
        first += len(episode.action)
        yield same
