"""Draws, names, sizes and options of recordings: kept as they are, or refused at once."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gaitforge
from gaitforge.datasets import DatasetError, open_store

ROBOTS = 2


class Counter:
    """Two robots that truncate after a number of steps and tell the observation before a reset."""

    num_envs = ROBOTS
    step_dt = 0.02
    metadata = {"autoreset_mode": "same_step"}  # noqa: RUF012, as gymnasium has it

    def __init__(self, length: int = 2) -> None:
        self.length = length
        self.episode = -1
        self.t = 0
        self.steps = 0

    def _seen(self) -> np.ndarray:
        return np.stack([np.arange(ROBOTS), np.full(ROBOTS, self.t)], 1).astype(np.float32)

    def reset(self) -> Any:
        """Both."""
        self.episode += 1
        self.t = 0
        return self._seen(), {}

    def step(self, actions: Any) -> Any:
        """One step."""
        self.t += 1
        self.steps += 1
        last = self._seen()
        done = np.full(ROBOTS, self.t >= self.length)
        seen = self.reset()[0] if done[0] else last
        return seen, np.ones(ROBOTS), done & False, done, {"final_obs": last} if done[0] else {}


ACTIONS = np.zeros((ROBOTS, 1), np.float32)


def record(path: Path, steps: int, env: Counter | None = None, **options: Any) -> Counter:
    """Record so many steps."""
    env = env or Counter()
    with gaitforge.record(path, env, **options):
        env.reset()
        for _ in range(steps):
            env.step(ACTIONS)
    return env


KINDS = {
    "text": st.text(st.characters(codec="ascii", categories=["L", "N"]), max_size=9),
    "numbers": st.one_of(
        st.integers(-(2**40), 2**40),
        st.floats(allow_nan=False, allow_infinity=False),
        st.floats(width=32, allow_nan=False, allow_infinity=False),
    ),
    "truth values": st.booleans(),
}


@given(data=st.data(), kind=st.sampled_from(list(KINDS)), part_steps=st.sampled_from([4, 1_000]))
@settings(max_examples=12)
def test_draws_are_stored_as_they_are(
    data: st.DataObject, kind: str, part_steps: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("draws") / "s.zarr"
    rows = st.lists(KINDS[kind], min_size=ROBOTS, max_size=ROBOTS)
    values = data.draw(st.lists(st.one_of(rows, KINDS[kind]), min_size=4, max_size=4))
    draws = {"drawn": lambda env: values[env.episode]}
    record(path, 6, draws=draws, part_steps=part_steps)
    stored = open_store(path).select().episodes().column("drawn").to_pylist()
    expected = [value if isinstance(value, list) else [value] * ROBOTS for value in values[:3]]
    assert stored == [value for row in expected for value in row]


@given(before=st.sampled_from(list(KINDS)), after=st.sampled_from(list(KINDS)))
@settings(max_examples=9)
def test_kinds_of_draws_join_or_are_refused_within_a_recording_and_in_a_store(
    before: str, after: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("draws")
    examples = {"text": ["a", "stairs"], "numbers": [1, 2], "truth values": [True, False]}
    pair = (examples[before], examples[after])

    def first_differs(env: Counter) -> Any:
        return pair[env.episode > 0]

    def record_both() -> None:
        record(folder / "one.zarr", 4, draws={"drawn": first_differs})

    def record_again() -> None:
        record(folder / "two.zarr", 2, draws={"drawn": pair[1]})

    record(folder / "two.zarr", 2, draws={"drawn": pair[0]})
    for attempt in (record_both, record_again):
        if before == after:
            attempt()
            continue
        with pytest.raises(DatasetError, match=f"are .*{after}, but were .*{before} before"):
            attempt()
    stored = open_store(folder / "two.zarr").select().episodes().column("drawn").to_pylist()
    assert stored == (pair[0] + pair[1] if before == after else pair[0])


@pytest.mark.parametrize(
    "name",
    ["task", "robot", "return", "terminated", "success", "success_known", "part", "length",
     "episode", "Length", "Weird Name", "", 3],
)  # fmt: skip
def test_names_of_draws_that_no_catalog_can_have_are_refused_before_a_step(
    name: Any, tmp_path: Path
) -> None:
    env = Counter()
    with pytest.raises(DatasetError) as refused:
        record(tmp_path / "s.zarr", 3, env, draws={name: np.arange(ROBOTS)})
    assert env.episode == -1
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "name", ["action", "reward", "obs", "obs_torque", "final_obs", "Torque", "mask"]
)
def test_names_of_further_fields_that_the_recorder_has_are_refused(
    name: str, tmp_path: Path
) -> None:
    env = Counter()
    with pytest.raises(DatasetError, match="name"):
        record(tmp_path / "s.zarr", 3, env, more={name: lambda env: np.zeros((ROBOTS, 1))})
    assert env.episode == -1


def test_a_draw_may_give_the_seed_and_two_names_may_not_differ_in_case_only(tmp_path: Path) -> None:
    record(tmp_path / "s.zarr", 2, draws={"seed": [4, 7]})
    assert open_store(tmp_path / "s.zarr").select().episodes().column("seed").to_pylist() == [4, 7]
    for draws, complaint in (
        ({"seed": [0.5, 1.0]}, "must be whole numbers"),
        ({"mass": 1, "Mass": 2}, "upper and lower case"),
        ({"mass": [None, 1]}, "use numbers, truth values or text"),
        ({"mass": np.full(ROBOTS, 2**64 - 1, np.uint64)}, "is more than"),
        ({"mass": [1, 2, 3]}, r"is \(2,\), not \(3,\)"),
    ):
        with pytest.raises(DatasetError, match=complaint):
            record(tmp_path / "t.zarr", 2, draws=draws)


@pytest.mark.parametrize(
    ("options", "complaint", "steps"),
    [
        ({"control_dt_s": 0.0}, "must be positive", 0),
        ({"control_dt_s": float("nan")}, "must be positive", 0),
        ({"control_dt_s": "fast"}, "number of seconds", 0),
        ({"quality": None}, "quality must be text", 0),
        ({"fields": {"obs": {"slices": {"a": (0, 9)}}}}, r"slice a = \(0, 9\) is outside 0..2", 1),
        ({"fields": {"obs": {"slices": {"a": 1}}}}, r"fields\['obs'\]", 1),
        ({"most_bytes": 100}, "most_bytes must be 128 or more", 1),
        ({"more": {"torque": lambda env: np.zeros(3)}}, "torque: not 2 rows", 1),
        ({"more": {"torque": lambda env: 0.5}}, "torque: not 2 rows", 1),
        ({"more": {"torque": lambda env: np.array(["a", "b"])}}, "dtype '<U1' is unknown", 1),
    ],
)
def test_options_are_refused_at_the_first_step_or_before(
    options: dict[str, Any], complaint: str, steps: int, tmp_path: Path
) -> None:
    env = Counter()
    with pytest.raises(DatasetError, match=complaint) as refused:
        record(tmp_path / "s.zarr", 9, env, **options)
    assert env.steps == steps
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "s.zarr").exists()


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"control_dt_s": 0.5}, "in its control_dt_s"),
        ({"robot": "go2"}, "in its robot"),
        ({"task": "walk"}, "in its task"),
        ({"fields": {"obs": {"unit": "m"}}}, "in its fields"),
        ({"more": {"torque": lambda env: np.zeros(ROBOTS)}}, "in its fields torque"),
    ],
)
def test_a_store_of_another_schema_is_refused_at_the_first_step(
    options: dict[str, Any], complaint: str, tmp_path: Path
) -> None:
    record(tmp_path / "s.zarr", 2)
    env = Counter()
    with pytest.raises(DatasetError, match=complaint):
        record(tmp_path / "s.zarr", 9, env, **options)
    assert env.steps == 1
    assert len(open_store(tmp_path / "s.zarr").select()) == 2


def test_a_draw_is_spelled_as_in_the_store(tmp_path: Path) -> None:
    record(tmp_path / "s.zarr", 2, draws={"mass": 1})
    with pytest.raises(DatasetError, match="'Mass' is 'mass' in the store"):
        record(tmp_path / "s.zarr", 2, draws={"Mass": 1})


def test_the_order_of_further_fields_is_that_of_the_store(tmp_path: Path) -> None:
    more = {name: lambda env, name=name: np.full(ROBOTS, ord(name)) for name in "ab"}
    for order in (more, dict(reversed(more.items()))):
        record(tmp_path / "s.zarr", 2, more=order)
    selection = open_store(tmp_path / "s.zarr").select()
    assert set(selection.read("a")) == {ord("a")}
    assert set(selection.read("b")) == {ord("b")}
    assert selection.steps == 8


ROW_BYTES = ROBOTS * 4 * (2 + 1 + 1)


@given(
    most_bytes=st.integers(4 * ROW_BYTES, 20 * ROW_BYTES),
    length=st.integers(1, 40),
    finals=st.booleans(),
)
@settings(max_examples=6)
def test_little_memory_cuts_episodes_in_pieces_of_what_fits(
    most_bytes: int, length: int, finals: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("memory") / "s.zarr"
    record(path, 40, Counter(length), most_bytes=most_bytes, final_obs=finals)
    rows = open_store(path).select()
    is_piece = ~np.array(rows.episodes().column("truncated").to_pylist())
    is_piece[-ROBOTS:] = False  # what runs at the end
    assert (rows.lengths[is_piece] >= 3 * (most_bytes // ROW_BYTES // 4)).all()
    assert is_piece.any() or length * ROW_BYTES <= 2 * most_bytes
    assert rows.steps == (40 - (finals and 40 % length > 0)) * ROBOTS
    starts = np.cumsum(rows.lengths) - rows.lengths
    for start, count in zip(starts, rows.lengths, strict=True):
        times = rows.read("obs")[start : start + count, 1]
        np.testing.assert_array_equal(times, np.arange(count) + times[0])


def test_episodes_that_are_left_out_are_told(tmp_path: Path) -> None:
    bad = {"torque": lambda env: np.where(env.episode == 1, np.nan, np.arange(ROBOTS))}
    with pytest.warns(UserWarning, match="^2 episodes left out") as warned:
        record(tmp_path / "s.zarr", 6, more=bad)
    assert warned[0].filename == __file__
    assert len(open_store(tmp_path / "s.zarr").select()) == 4


@pytest.mark.parametrize(
    ("obs", "last"),
    [
        (np.zeros((2, 3)), np.zeros((2, 4))),
        (np.zeros((2, 3)), np.zeros((1, 3))),
        ({"policy": np.zeros((2, 3)), "b": np.zeros((2, 3))}, np.zeros((2, 3))),
        (np.zeros((2, 3), int), np.full((2, 3), 0.5)),
    ],
)
def test_final_observations_of_other_shapes_groups_or_types_are_refused(
    obs: Any, last: Any, tmp_path: Path
) -> None:
    options = gaitforge.RecordingOptions(control_dt_s=0.02)
    done = np.ones(ROBOTS, bool)
    with (
        gaitforge.Recorder(tmp_path / "s.zarr", options) as recorder,
        pytest.raises(DatasetError, match="final_obs: obs"),
    ):
        recorder.add(obs, ACTIONS, np.ones(ROBOTS), done, ~done, final_obs=last)
