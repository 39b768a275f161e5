"""Stored episodes simulated again: bit for bit, and every kind of difference is named."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from gaitforge.collectors.legged.data import CollectionGrid
from gaitforge.collectors.legged.replaying import replay_environment
from gaitforge.datasets import create_store, open_store
from gaitforge.flows.progress import Silent
from gaitforge.flows.stages.collect import collect
from gaitforge.flows.stages.replay import replay
from gaitforge.flows.tasks.legged import LeggedPlan

GRID = CollectionGrid(
    terrains=("flat", "stairs"), skills=("stand", "tilt", "rush"), parts=2, episodes_per_part=10
)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("replay") / "legged.zarr"
    collect(LeggedPlan(grid=GRID, robots=10, threads=1), path, Silent())
    return path


def test_a_store_repeats_bit_for_bit_whatever_runs_beside_an_episode(store: Path) -> None:
    assert replay(store, 20, 0, Silent()) == []
    assert replay(store, 1, 3, Silent()) == []


# NumPy's functions for AVX-512 cannot be had on every processor. So all that have such are off by
# what float32 shows, after numba has registered the true ones.
ANOTHER_NUMPY = """
import numba
import numpy as np
from numpy.lib.introspect import opt_func_info

used = {each["current"] for kinds in opt_func_info().values() for each in kinds.values()}
assert all(name.startswith("baseline") for name in used), used
numba.njit(lambda x: x + 1)(np.ones(2))
def off(function):
    return lambda *values: function(*values) * (1 + 1e-6)
for name in (
    "sin cos tan exp exp2 expm1 log log2 log10 log1p cbrt sinh cosh tanh arcsin arccos arctan "
    "arcsinh arccosh arctanh arctan2 power"
).split():
    setattr(np, name, off(getattr(np, name)))
"""
REPLAY = """
import sys
from gaitforge.flows.progress import Silent
from gaitforge.flows.stages.replay import replay
print(replay(sys.argv[1], 20, 0, Silent()))
"""


def _replayed(code: str, store: Path, **variables: str) -> str:
    """What a replay prints in a process of its own, after some code and with more variables."""
    command = [sys.executable, "-c", code + REPLAY, store]
    done = subprocess.run(
        command, env={**os.environ, **variables}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()[-1]


@pytest.mark.slow
def test_a_store_repeats_whatever_functions_numpy_chooses(store: Path) -> None:
    extensions = np.show_config(mode="dicts")["SIMD Extensions"]["found"]
    assert _replayed(ANOTHER_NUMPY, store, NPY_DISABLE_CPU_FEATURES=" ".join(extensions)) == "[]"


@pytest.mark.long
def test_a_store_repeats_where_numba_compiles_for_any_processor(
    store: Path, tmp_path: Path
) -> None:
    processor = {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}
    assert _replayed("", store, NUMBA_CACHE_DIR=str(tmp_path), **processor) == "[]"


def _rewritten(store: Path, tmp_path: Path, field: str, simulator: str = "mujoco") -> Path:
    """A copy of the store, made by the writer itself, with one number of one field changed."""
    from gaitforge.datasets import Store

    source = open_store(store)
    copy = Store.create(tmp_path / "copy.zarr", source.schema)
    selection = source.select()
    table = selection.episodes()
    part = table.column("part").to_pylist()[0]
    rows = [i for i, name in enumerate(table.column("part").to_pylist()) if name == part]
    episodes = [selection.episode(i) for i in rows]
    steps = {
        name: np.concatenate([episode[name] for episode in episodes])
        for name in ("obs", "action", "reward")
    }
    final = {"final_obs": np.stack([episode["final_obs"] for episode in episodes])}
    first = steps[field].reshape(len(steps[field]), -1)
    first[30, 0] = np.nextafter(first[30, 0], np.float32(9))
    own = set(table.column_names) - {"part", "start"}
    columns = {name: table.column(name).take(rows).to_pylist() for name in own}
    columns["simulator"] = [simulator] * len(rows)
    copy.write_part(part, steps, columns, final)
    return copy.path


@pytest.mark.parametrize("field", ["obs", "action", "reward"])
def test_one_flipped_bit_is_found_and_named(store: Path, tmp_path: Path, field: str) -> None:
    faults = replay(_rewritten(store, tmp_path, field), 10, 0, Silent())
    assert len(faults) == 1
    assert f"{field} of step" in str(faults[0])
    assert "part " in str(faults[0])
    assert "\n" not in str(faults[0])


def test_episodes_that_were_saved_as_one_are_refused(store: Path, tmp_path: Path) -> None:
    selection = open_store(store).select()
    rows = selection.episodes().drop_columns(["part", "start"]).slice(0, 1).to_pylist()
    episodes = [selection.episode(k) for k in range(3)]
    rows[0]["length"] = sum(len(episode["obs"]) for episode in episodes)
    assert rows[0]["length"] > 192
    schema = selection.schema
    joined = create_store(tmp_path / "joined.zarr", schema)
    steps = {n: np.concatenate([e[n] for e in episodes]) for n in schema.names("step")}
    finals = {n: episodes[-1][n][None] for n in schema.names("episode")}
    columns = {name: [value] for name, value in rows[0].items()}
    joined.write_part("joined", steps, columns, finals)
    with pytest.raises(ValueError, match="steps, and the legged task's have 192 at most"):
        replay_environment(joined.select(), 1)


def test_a_store_of_a_simulator_that_is_not_exact_is_refused(store: Path, tmp_path: Path) -> None:
    made = _rewritten(store, tmp_path, "obs", "isaacgym")
    with pytest.raises(ValueError, match="made by isaacgym, which repeats no episode bit for"):
        replay(made, 1, 0, Silent())
