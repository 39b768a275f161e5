"""Recorded episodes are those that the environment had, for every library and way of resetting."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gaitforge
from gaitforge.datasets import DatasetError, Store, open_store
from gaitforge.datasets.storage.integrity import verify_store

gymnasium = pytest.importorskip("gymnasium")
torch = pytest.importorskip("torch")

from gaitforge.plugins.exchange.tests.recording.counting import (  # noqa: E402
    Batch,
    Counting,
    batched_actions,
    episode_length,
    is_failure,
    reward,
)

Loop = Callable[[Any, int, int], None]


def vector(mode: str) -> Callable[[int], Any]:
    """A maker of gymnasium's vector environments."""

    def make(robots: int) -> Any:
        makers = [lambda robot=robot: Counting(robot) for robot in range(robots)]
        return gymnasium.vector.SyncVectorEnv(makers, autoreset_mode=mode, copy=False)

    return make


def run_vector(env: Any, robots: int, steps: int) -> None:
    """A loop of gymnasium; where the environment does not reset itself, this does."""
    env.reset(seed=0)
    for step in range(steps):
        *_, terminated, truncated, _ = env.step(batched_actions(robots, step))
        done = terminated | truncated
        if env.metadata["autoreset_mode"] is gymnasium.vector.AutoresetMode.DISABLED and done.any():
            env.reset(options={"reset_mask": done})


def run_single(env: Any, robots: int, steps: int) -> None:
    """A loop of one environment."""
    env.reset()
    for step in range(steps):
        *_, terminated, truncated, _ = env.step(batched_actions(1, step)[0])
        if terminated or truncated:
            env.reset()


def run_manager(env: Any, robots: int, steps: int) -> None:
    """A loop of a manager environment."""
    env.reset()
    for step in range(steps):
        *_, terminated, truncated, _ = env.step(torch.as_tensor(batched_actions(robots, step)))
        ids = (terminated | truncated).nonzero().flatten()
        if not env.cfg.auto_reset and len(ids):
            env.reset(env_ids=ids)


def run_vec_env(env: Any, robots: int, steps: int) -> None:
    """A loop of rsl-rl, which resets nothing itself."""
    for step in range(steps):
        env.step(torch.as_tensor(batched_actions(robots, step)))


CASES: dict[str, tuple[Callable[[int], Any], Loop]] = {
    "gymnasium next step": (vector("NextStep"), run_vector),
    "gymnasium same step": (vector("SameStep"), run_vector),
    "gymnasium disabled": (vector("Disabled"), run_vector),
    "one environment": (lambda robots: Counting(0), run_single),
    "manager": (lambda robots: Batch(robots, 5), run_manager),
    "manager without reset": (lambda robots: Batch(robots, 5, auto_reset=False), run_manager),
    "rsl-rl": (lambda robots: Batch(robots, 4), run_vec_env),
}
"""Library and way of resetting -> maker of N robots, and a loop."""


def check_episodes(store: Store, finals: bool, robots: int, *, pieces: bool = False) -> int:
    """Every stored episode is one of the environment's, or with `pieces` a part of one.

    Returns the whole episodes.
    """
    selection = store.select()
    table = selection.episodes().to_pydict()
    fields = {name: selection.read(name) for name in store.schema.names("step")}
    whole = 0
    start = 0
    for k, length in enumerate(table["length"]):
        steps = slice(start, start + length)
        start += length
        obs = fields["obs"][steps]
        robot, episode, first = (int(value) for value in obs[0])
        assert robot < robots
        expected = [(robot, episode, first + t) for t in range(length)]
        np.testing.assert_array_equal(obs, expected)
        rewards = np.array([reward(*row) for row in expected], np.float32)
        np.testing.assert_array_equal(fields["reward"][steps], rewards)
        assert (fields["action"][steps, 0] == robot).all()
        assert (np.diff(fields["action"][steps, 1]) == 1).all(), "consecutive calls of step"
        assert table["return"][k] == pytest.approx(rewards.sum(dtype=float))
        assert table["robot_number"][k] == robot
        full = episode_length(robot, episode)
        ends = (table["terminated"][k], table["truncated"][k])
        if any(ends):
            assert (first, length) == (0, full) or (pieces and first + length == full)
            assert ends == (is_failure(robot, episode), not is_failure(robot, episode))
            whole += first == 0
        else:
            assert first + length < full
        assert first == 0 or pieces
        if table["success_known"][k]:
            assert table["success"][k] == (episode % 3 == 0)
        if finals:
            last = selection.read("final_obs")[k]
            np.testing.assert_array_equal(last, (robot, episode, first + length))
    return whole


def expected_whole(robots: int, steps: int, gap: int) -> int:
    """Episodes that end within a number of calls; `gap` calls lie between two of a robot."""
    count = 0
    for robot in range(robots):
        time = episode = 0
        while (time := time + episode_length(robot, episode)) <= steps:
            count += 1
            episode += 1
            time += gap
    return count


@pytest.mark.parametrize("name", CASES)
@given(
    robots=st.integers(1, 5),
    steps=st.integers(1, 60),
    part_steps=st.sampled_from([1, 13, 1_000]),
    block_bytes=st.sampled_from([1, 500, 8_000_000]),
)
@settings(max_examples=8)
def test_every_episode_is_stored_as_it_was(
    name: str, robots: int, steps: int, part_steps: int, block_bytes: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:  # fmt: skip
    make, loop = CASES[name]
    robots = 1 if make(1).__class__ is Counting else robots
    path = tmp_path_factory.mktemp("recorded") / "s.zarr"
    env = make(robots)
    kind = type(env)
    draws = {"robot_number": np.arange(robots)}
    with pytest.MonkeyPatch.context() as patch:
        buffer = "gaitforge.plugins.exchange.recording.episode_buffer._BLOCK_BYTES"
        patch.setattr(buffer, block_bytes)
        with gaitforge.record(path, env, draws=draws, part_steps=part_steps) as same:
            assert same is env
            loop(env, robots, steps)
    assert type(env) is kind
    assert "step" not in vars(env)
    gap = int(name == "gymnasium next step")
    expected = expected_whole(robots, steps, gap)
    if not path.exists():
        assert expected == 0
        return
    store = open_store(path)
    finals = "final_obs" in store.schema.names("episode")
    assert finals == (name not in ("manager", "rsl-rl"))
    assert check_episodes(store, finals, robots) == expected
    assert verify_store(store) == []


def test_groups_units_slices_and_further_fields_reach_the_schema(tmp_path: Path) -> None:
    env = Batch(2, 5)
    fields = {
        "obs": {"unit": "1", "description": "seen", "slices": {"step": (2, 3)}},
        "torque": {"unit": "N m"},
    }
    more = {"torque": lambda env: torch.full((2, 4), 0.5)}
    with gaitforge.record(tmp_path / "s.zarr", env, fields=fields, more=more, task="count"):
        run_manager(env, 2, 9)
    schema = open_store(tmp_path / "s.zarr").schema
    assert schema.field("obs").slices == {"step": (2, 3)}
    assert schema.field("obs").description == "seen"
    assert schema.field("torque").unit == "N m"
    assert schema.field("torque").shape == (4,)
    assert {"obs", "obs_critic", "action", "reward", "torque"} == set(schema.names("step"))
    assert schema.control_dt_s == 0.02
    selection = open_store(tmp_path / "s.zarr").select(task="count")
    np.testing.assert_array_equal(selection.read("obs_critic"), 2 * selection.read("obs"))


def test_memory_is_bounded_by_pieces_of_the_longest_episodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    buffer = "gaitforge.plugins.exchange.recording.episode_buffer._BLOCK_BYTES"
    monkeypatch.setattr(buffer, 1)
    monkeypatch.setattr("gaitforge.plugins.exchange.tests.recording.counting.episode_length",
                        lambda robot, episode: 40 + 7 * robot)  # fmt: skip
    monkeypatch.setitem(globals(), "episode_length", lambda robot, episode: 40 + 7 * robot)
    env = Batch(3, 5, auto_reset=False)
    draws = {"robot_number": np.arange(3)}
    with gaitforge.record(tmp_path / "s.zarr", env, draws=draws, most_bytes=1_000):
        run_manager(env, 3, 200)
    store = open_store(tmp_path / "s.zarr")
    check_episodes(store, True, 3, pieces=True)
    ends = store.select().episodes().to_pydict()
    assert not any(ends["terminated"][:3]), "the first are pieces"
    # Only the robots' very last pieces lose their last step, whose end nobody saw.
    assert 3 * 200 - store.select().steps <= 3


def test_unfinished_episodes_are_dropped_on_request(tmp_path: Path) -> None:
    env = vector("SameStep")(4)
    draws = {"robot_number": np.arange(4)}
    with gaitforge.record(tmp_path / "s.zarr", env, draws=draws, unfinished="drop"):
        run_vector(env, 4, 20)
    store = open_store(tmp_path / "s.zarr")
    ends = store.select().episodes().to_pydict()
    assert all(a or b for a, b in zip(ends["terminated"], ends["truncated"], strict=True))
    assert check_episodes(store, True, 4) == expected_whole(4, 20, 0)


def test_a_second_recording_adds_to_the_store(tmp_path: Path) -> None:
    for _ in range(2):
        env = vector("SameStep")(2)
        with gaitforge.record(tmp_path / "s.zarr", env, draws={"robot_number": np.arange(2)}):
            run_vector(env, 2, 30)
    store = open_store(tmp_path / "s.zarr")
    assert len(store.parts()) == 2
    assert len(set(store.select().episode_ids())) == len(store.select())
    assert check_episodes(store, True, 2) == 2 * expected_whole(2, 30, 0)


def test_episodes_that_are_not_finite_are_left_out_and_counted(tmp_path: Path) -> None:
    options = gaitforge.RecordingOptions(control_dt_s=0.02)
    with gaitforge.Recorder(tmp_path / "s.zarr", options) as recorder:
        for step in range(6):
            obs = np.ones((2, 3), np.float32)
            obs[1] = np.nan if step == 1 else 1.0
            done = np.full(2, step % 2 == 1)
            recorder.add(obs, obs, np.ones(2), done, ~done & False, final_obs=np.ones((2, 3), "f4"))
    assert recorder.left_out == 1
    assert recorder.committed_episodes == 5
    assert len(open_store(tmp_path / "s.zarr").select()) == 5


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"part_step": 3}, "no option 'part_step'; did you mean 'part_steps'"),
        ({"fields": {"oobs": {}}}, "no field 'oobs'"),
        ({"fields": {"obs": {"units": "m"}}}, "no 'units'"),
        ({"unfinished": "maybe"}, "allowed: keep, drop"),
        ({"draws": {"mass": np.ones((2, 2))}}, r"draws\['mass'\] must be \(N,\)"),
        ({"autoreset": "never"}, "no autoreset"),
        ({"final_obs": True}, "the observation after an episode's last step is missing"),
    ],
)
def test_wrong_options_are_refused_in_a_line(
    change: dict[str, Any], complaint: str, tmp_path: Path
) -> None:
    env = Batch(2, 5)
    with (
        pytest.raises(DatasetError, match=complaint) as refused,
        gaitforge.record(tmp_path / "s.zarr", env, **change),
    ):
        run_manager(env, 2, 9)
    assert "\n" not in str(refused.value)
    assert "step" not in vars(env)


def test_what_is_no_store_is_refused_before_the_first_step(tmp_path: Path) -> None:
    (tmp_path / "s.zarr").write_text("mine")
    with pytest.raises(DatasetError), gaitforge.record(tmp_path / "s.zarr", Batch(1, 5)):
        raise AssertionError("not reached")
    assert (tmp_path / "s.zarr").read_text() == "mine"


def test_an_error_of_the_loop_keeps_what_was_recorded(tmp_path: Path) -> None:
    env = vector("SameStep")(2)

    def failing() -> None:
        with gaitforge.record(tmp_path / "s.zarr", env, draws={"robot_number": np.arange(2)}):
            run_vector(env, 2, 30)
            raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        failing()
    assert check_episodes(open_store(tmp_path / "s.zarr"), True, 2) == expected_whole(2, 30, 0)


# Forks a recording for every line of its input, and tells its process id.
RECORDING = """
import os, sys
import numpy as np
import gaitforge
from gaitforge.plugins.exchange.tests.recording.test_recording import run_vector, vector

gaitforge.record  # imported once
for line in sys.stdin:
    child = os.fork()
    if not child:
        numbers = {"robot_number": np.arange(4)}
        env = vector("SameStep")(4)
        with gaitforge.record(sys.argv[1], env, draws=numbers, part_steps=40):
            run_vector(env, 4, 1_000_000)
    print(child, flush=True)
    os.waitpid(child, 0)
"""


@pytest.mark.slow
def test_a_kill_loses_no_committed_episode_and_tears_none(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    path = tmp_path / "s.zarr"
    command = [sys.executable, "-c", RECORDING, str(path)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for _ in range(20):
            before = set(path.glob("catalog/*.parquet"))
            process.stdin.write("\n")
            process.stdin.flush()
            child = int(process.stdout.readline())
            more = rng.integers(0, 4)
            while len(set(path.glob("catalog/*.parquet")) - before) < more:
                time.sleep(0.01)
            time.sleep(rng.uniform(0.0, 0.05))
            os.kill(child, signal.SIGKILL)
            assert before <= set(path.glob("catalog/*.parquet"))
        process.stdin.close()
    store = open_store(path)
    assert verify_store(store) == []
    check_episodes(store, True, 4)
