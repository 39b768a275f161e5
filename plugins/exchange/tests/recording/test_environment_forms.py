"""Environments that call their own methods, are wrapped, or are reset in other ways."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gaitforge
from gaitforge.datasets import DatasetError, open_store

gymnasium = pytest.importorskip("gymnasium")
torch = pytest.importorskip("torch")

from gaitforge.plugins.exchange.recording.environments import (  # noqa: E402
    autoreset_of,
    reset_rows,
    robots_of,
)
from gaitforge.plugins.exchange.tests.recording.counting import (  # noqa: E402
    Batch,
    Counting,
    batched_actions,
    episode_length,
)
from gaitforge.plugins.exchange.tests.recording.test_recording import (  # noqa: E402
    Loop,
    check_episodes,
    expected_whole,
    run_manager,
    vector,
)


class SelfResetting(Batch):
    """`step` resets by `self.reset`, and `reset` steps once without an effect, as legged_gym."""

    def reset(self, *, seed: Any = None, env_ids: Any = None) -> Any:
        """All robots, or those of ids."""
        super().reset(env_ids=env_ids)
        return self.step(None)[0], {}

    def step(self, actions: Any) -> Any:
        """One step of all; none without actions."""
        if actions is None:
            return self._seen(), {}
        self.cfg.auto_reset = False
        seen, rewards, terminated, truncated, info = super().step(actions)
        self.cfg.auto_reset = True
        if len(ids := (terminated | truncated).nonzero().flatten()):
            self.reset(env_ids=ids)
        return seen, rewards, terminated, truncated, info


class Registered(Batch, gymnasium.Env[Any, Any]):
    """As Isaac Lab's environments: a batch that `gymnasium.make` wraps."""

    metadata = {"render_modes": []}  # noqa: RUF012, as gymnasium has it

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:  # type: ignore[override]
        """All robots."""
        return super().reset(seed=seed)


class Positional(Batch):
    """`reset` takes ids without a name."""

    def reset(self, seed: Any = None, env_ids: Any = None) -> Any:  # type: ignore[override]
        """All robots, or those of ids or a mask."""
        if env_ids is not None:
            env_ids = torch.as_tensor(env_ids)
            env_ids = env_ids.nonzero().flatten() if env_ids.dtype == torch.bool else env_ids
        return super().reset(env_ids=env_ids)


def run_wrapped(env: Any, robots: int, steps: int) -> None:
    """A loop of gymnasium's that resets nothing after the beginning."""
    env.reset(seed=0)
    for step in range(steps):
        env.step(torch.as_tensor(batched_actions(robots, step)))


def run_alone(env: Any, robots: int, steps: int) -> None:
    """A loop of one environment that resets itself."""
    env.reset()
    for step in range(steps):
        env.step(batched_actions(1, step)[0])


def run_until_all_are_done(env: Any, robots: int, steps: int) -> None:
    """A loop that resets all robots when all have ended."""
    env.reset()
    ended = np.zeros(robots, bool)
    for step in range(steps):
        *_, terminated, truncated, _ = env.step(torch.as_tensor(batched_actions(robots, step)))
        ended |= (terminated | truncated).numpy()
        if ended.all():
            env.reset()
            ended[:] = False


def run_positional(env: Any, robots: int, steps: int) -> None:
    """A loop that tells ids by their place, as tensors, arrays, lists and masks in turns."""
    env.reset()
    for step in range(steps):
        *_, terminated, truncated, _ = env.step(torch.as_tensor(batched_actions(robots, step)))
        done = terminated | truncated
        ids = done.nonzero().flatten()
        if len(ids):
            env.reset(None, [ids, ids.numpy(), ids.tolist(), done, done.tolist()][step % 5])


FORMS: dict[str, tuple[Any, Loop]] = {
    "calls itself": (lambda robots: SelfResetting(robots, 5), run_manager),
    "wrapped batch": (
        lambda robots: gymnasium.wrappers.OrderEnforcing(Registered(robots, 5)),
        run_wrapped,
    ),
    "wrapper that resets": (
        lambda robots: gymnasium.wrappers.OrderEnforcing(
            gymnasium.wrappers.Autoreset(gymnasium.wrappers.OrderEnforcing(Counting()))
        ),
        run_alone,
    ),
    "reset when all are done": (
        lambda robots: Batch(robots, 5, auto_reset=False),
        run_until_all_are_done,
    ),
    "reset by place": (lambda robots: Positional(robots, 5, auto_reset=False), run_positional),
}


def whole_in_rounds(robots: int, steps: int) -> int:
    """Episodes that end within a number of calls, where all robots begin together."""
    begin = episode = count = 0
    while begin < steps:
        lengths = [episode_length(robot, episode) for robot in range(robots)]
        count += sum(begin + length <= steps for length in lengths)
        begin += max(lengths)
        episode += 1
    return count


@pytest.mark.parametrize("form", FORMS)
@given(robots=st.integers(1, 4), steps=st.integers(1, 40))
@settings(max_examples=6)
def test_every_episode_is_stored_as_it_was(
    form: str, robots: int, steps: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    make, loop = FORMS[form]
    robots = 1 if form == "wrapper that resets" else robots
    path = tmp_path_factory.mktemp("recorded") / "s.zarr"
    with gaitforge.record(path, make(robots), draws={"robot_number": np.arange(robots)}) as env:
        loop(env, robots, steps)
    expected = expected_whole(robots, steps, int(form == "wrapper that resets"))
    if form == "reset when all are done":
        expected = whole_in_rounds(robots, steps)
    if not path.exists():
        assert expected == 0
        return
    store = open_store(path)
    finals = "final_obs" in store.schema.names("episode")
    assert finals == (form not in ("calls itself", "wrapped batch"))
    assert check_episodes(store, finals, robots) == expected


def test_steps_after_the_last_end_are_told_once(tmp_path: Path) -> None:
    env = Counting()
    with (
        pytest.warns(UserWarning, match="every recorded episode has ended") as warned,
        gaitforge.record(tmp_path / "s.zarr", env, draws={"robot_number": 0}),
    ):
        run_alone(env, 1, 20)
    assert len(warned) == 1
    assert warned[0].filename == run_alone.__code__.co_filename
    assert check_episodes(open_store(tmp_path / "s.zarr"), True, 1) == 1


def test_an_environment_under_a_wrapper_is_read_as_without_it() -> None:
    wrap = gymnasium.wrappers.OrderEnforcing
    for env in (Registered(1, 5), Registered(3, 5, auto_reset=False), Counting()):
        assert autoreset_of(wrap(wrap(env))) == autoreset_of(env)
        assert robots_of(wrap(wrap(env))) == robots_of(env)
    vectors = [vector(mode)(2) for mode in ("NextStep", "SameStep", "Disabled")]
    assert [autoreset_of(env) for env in vectors] == ["next_step", "same_step", "disabled"]
    direct = Registered(2, 5)  # without managers
    direct.single_action_space = direct.episode_length_buf = 1
    assert autoreset_of(wrap(direct)) == "same_step"


def by_seed(seed: Any = None, env_ids: Any = None) -> None:
    """As Isaac Lab's `reset`."""


def by_any(*arguments: Any, **named: Any) -> None:
    """As a wrapper's `reset`."""


@given(chosen=st.lists(st.booleans(), min_size=1, max_size=6), data=st.data())
@settings(max_examples=60)
def test_the_robots_of_a_reset_are_known_however_they_are_told(
    chosen: list[bool], data: st.DataObject
) -> None:
    mask = np.array(chosen)
    ids = np.flatnonzero(mask)
    kinds = [
        mask,
        chosen,
        torch.as_tensor(mask),
        ids,
        ids.tolist(),
        tuple(ids),
        torch.as_tensor(ids),
    ]
    value = data.draw(st.sampled_from(kinds))
    named = data.draw(st.sampled_from([{"env_ids": value}, {"options": {"reset_mask": mask}}]))
    for reset, arguments, names in (
        (by_seed, (), named),
        (by_any, (), named),
        (by_seed, (None, value), {}),
        (by_any, (value,), {"seed": [1] * len(mask)}),
        (lambda which: None, (value,), {}),
    ):
        np.testing.assert_array_equal(reset_rows(len(mask), reset, arguments, names), mask)
    for reset, arguments, names in (
        (by_seed, (3,), {}),
        (by_seed, (None,), {"env_ids": None}),
        (by_any, (), {"seed": ids, "state": ids, "options": {"level": ids}}),
        (by_any, (np.ones((len(mask), 2)),), {}),
    ):
        assert reset_rows(len(mask), reset, arguments, names).all()


def test_ids_of_no_robot_and_a_short_mask_are_refused() -> None:
    with pytest.raises(DatasetError, match=r"not all in 0\.\.1"):
        reset_rows(2, by_seed, (None, [2]), {})
    with pytest.raises(DatasetError, match=r"is \(3,\), not \(2,\)"):
        reset_rows(2, by_seed, (), {"options": {"reset_mask": [True] * 3}})


class InTuples(Counting):
    """Its observation is a tuple of two."""

    observation_space = gymnasium.spaces.Tuple([Counting.observation_space] * 2)

    def observed(self) -> Any:
        """Two of (3,)."""
        return super().observed(), -super().observed()


@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
def test_a_tuple_of_observations_is_a_field_for_each(mode: str, tmp_path: Path) -> None:
    env = gymnasium.vector.SyncVectorEnv([InTuples, lambda: InTuples(1)], autoreset_mode=mode)
    with gaitforge.record(tmp_path / "s.zarr", env):
        env.reset()
        for step in range(2):
            *_, terminated, truncated, _ = env.step(batched_actions(2, step))
            if mode == "Disabled" and (terminated | truncated).any():
                env.reset(options={"reset_mask": terminated | truncated})
    store = open_store(tmp_path / "s.zarr")
    assert set(store.schema.names("episode")) == {"final_obs_0", "final_obs_1"}
    for before in ("obs_", "final_obs_"):
        first = store.select().read(f"{before}0")
        np.testing.assert_array_equal(first, -store.select().read(f"{before}1"))
    assert set(store.select().read("obs_0")[:, 0]) == {0, 1}


class Teller(Counting):
    """Tells success in its last step, by one of two names; or never, if it is robot 0."""

    def step(self, action: Any) -> Any:
        """One step."""
        seen, value, terminated, truncated, _ = super().step(action)
        key = "success" if self.robot % 2 else "is_success"
        tells = self.robot and (terminated or truncated)
        return seen, value, terminated, truncated, {key: self.robot < 3} if tells else {}


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_success_is_known_of_the_robots_that_told_it(mode: str, tmp_path: Path) -> None:
    makers = [lambda robot=robot: Teller(robot) for robot in range(5)]
    env = gymnasium.vector.SyncVectorEnv(makers, autoreset_mode=mode)
    draws = {"robot_number": np.arange(5)}
    with gaitforge.record(tmp_path / "s.zarr", env, draws=draws, unfinished="drop"):
        env.reset()
        for step in range(20):
            env.step(batched_actions(5, step))
    rows = open_store(tmp_path / "s.zarr").select().episodes().to_pydict()
    told = zip(rows["robot_number"], rows["success_known"], rows["success"], strict=True)
    assert set(told) == {(0, False, False), (1, True, True), (2, True, True), (3, True, False),
                         (4, True, False)}  # fmt: skip


def test_draws_are_read_when_episodes_begin_and_at_no_other_time(tmp_path: Path) -> None:
    for mode in ("NextStep", "SameStep", "Disabled"):
        env = vector(mode)(2)
        path = tmp_path / f"{mode}.zarr"
        moments: list[tuple[int, ...]] = []

        def began(env: Any, moments: list[tuple[int, ...]] = moments) -> np.ndarray:
            moments.append(tuple(one.episode for one in env.envs))
            return np.array(moments[-1])

        with gaitforge.record(path, env, draws={"began": began}):
            env.reset()
            for step in range(25):
                *_, terminated, truncated, _ = env.step(batched_actions(2, step))
                if mode == "Disabled" and (terminated | truncated).any():
                    env.reset(options={"reset_mask": terminated | truncated})
        store = open_store(path)
        starts = np.cumsum([0, *store.select().episodes().column("length").to_pylist()[:-1]])
        episodes = store.select().read("obs")[starts, 1]
        assert store.select().episodes().column("began").to_pylist() == episodes.tolist()
        assert len(set(moments)) == len(moments)


@pytest.mark.parametrize(
    ("returned", "complaint"),
    [
        ((np.zeros((2, 3)), np.zeros((2, 1)), np.zeros(2, bool), np.zeros(2, bool), {}), "reward"),
        ((np.zeros((2, 3)), None, np.ones(2), np.zeros(2, bool), {}), "reward"),
        ((np.zeros((2, 3)), np.ones(2), np.zeros((2, 1), bool), np.zeros(2, bool), {}),
         "terminated is"),
        ((np.zeros((2, 3)), np.ones(2), np.full(2, 0.5), np.zeros(2, bool), {}), "0 and 1"),
        ((np.zeros((2, 3)), np.ones(2), np.zeros(2, bool), [{}, {}]), "no mapping"),
        ((np.zeros((2, 3)), np.ones(2)), "2 values"),
        ((np.zeros((3, 3)), np.ones(2), np.zeros(2, bool), np.zeros(2, bool), {}),
         r"obs is float32 \(3, 3\)"),
    ],
)  # fmt: skip
def test_what_step_returns_is_refused_at_the_first_step(
    returned: Any, complaint: str, tmp_path: Path
) -> None:
    env = Batch(2, 5)
    env.step = lambda actions: returned  # type: ignore[method-assign]
    with (
        pytest.raises(DatasetError, match=complaint) as refused,
        gaitforge.record(tmp_path / "s.zarr", env),
    ):
        run_wrapped(env, 2, 2)
    assert "\n" not in str(refused.value)


class Partial(Batch):
    """`reset` returns the observations of what it resets."""

    def reset(self, *, seed: Any = None, env_ids: Any = None) -> Any:
        """All robots, or those of ids."""
        seen, info = super().reset(env_ids=env_ids)
        rows = slice(None) if env_ids is None else env_ids
        return {name: values[rows] for name, values in seen.items()}, info


def test_a_reset_may_return_the_robots_that_it_resets(tmp_path: Path) -> None:
    env = Partial(3, 5, auto_reset=False)
    with gaitforge.record(tmp_path / "s.zarr", env, draws={"robot_number": np.arange(3)}):
        run_manager(env, 3, 20)
    assert check_episodes(open_store(tmp_path / "s.zarr"), True, 3) == expected_whole(3, 20, 0)


def test_a_reset_that_returns_nothing_is_refused(tmp_path: Path) -> None:
    env = Batch(3, 5, auto_reset=False)
    env.reset = lambda **named: None  # type: ignore[method-assign]
    with (
        pytest.raises(DatasetError, match="not of all 3 robots"),
        gaitforge.record(tmp_path / "s.zarr", env),
    ):
        env.reset()
