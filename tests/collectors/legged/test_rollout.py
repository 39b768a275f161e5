"""Episodes in closed loop: alone or among others, all of them once, and as they are stored."""

from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from gaitforge.collectors.experts.expert import load_expert
from gaitforge.collectors.legged.data import (
    CollectionGrid,
    legged_schema,
    part_arrays,
    part_catalog,
)
from gaitforge.collectors.legged.environment import LeggedEnvironment
from gaitforge.collectors.legged.episodes import EpisodeSpec
from gaitforge.collectors.legged.observations import POLICY_SLICES
from gaitforge.collectors.legged.rollout import (
    STATE_DIM,
    EpisodeRecord,
    EpisodeResult,
    EvaluationGrid,
    cell_measures,
    evaluate,
    run_episodes,
)
from gaitforge.collectors.physics.interface import RobotStart
from gaitforge.collectors.policy import Observation, Policy
from gaitforge.collectors.robots.kinematics import COMMAND_NAMES
from gaitforge.collectors.robots.robot import N_JOINTS
from gaitforge.collectors.scenarios.randomisation import DEFAULT, N_STANDARD
from gaitforge.collectors.scenarios.skills import SKILLS
from gaitforge.collectors.scenarios.terrains import TERRAINS, Passage
from gaitforge.collectors.timing import EPISODE_STEPS
from gaitforge.datasets import Store
from tests.collectors.making import ROBOT, Constant

LAST_ACTION = slice(*POLICY_SLICES["last_action"])
COMMAND = slice(*POLICY_SLICES["command"])

# More episodes than robots, on every terrain, with and without action noise; one steers to a bar.
SPECS = [
    EpisodeSpec(
        100 - k,
        ["flat", "rough", "slope", "stairs", "obstacles"][k % 5],
        level=k % 10,
        skill=["rush", "stand"][k % 2],
        seed=1000 + k,
        action_noise=[0.0, 0.3][k % 2],
    )
    for k in range(7)
]
SPECS.append(EpisodeSpec(90, "rough", 6, "crawl", seed=2000, action_noise=0.3))


def run(policy: Policy, specs: list[EpisodeSpec], robots: int) -> list[EpisodeResult]:
    env = LeggedEnvironment(ROBOT, robots, threads=1)
    try:
        return list(run_episodes(env, policy, specs, record=True))
    finally:
        env.close()


def recorded(result: EpisodeResult) -> EpisodeRecord:
    assert result.record is not None
    return result.record


@pytest.fixture(scope="module")
def results() -> list[EpisodeResult]:
    """The expert's episodes, three robots at a time."""
    return run(load_expert().policy, SPECS, robots=3)


@pytest.fixture(scope="module")
def falls() -> list[EpisodeResult]:
    """Episodes of a policy that throws its legs up."""
    return run(Constant(8.0), SPECS[:2], robots=3)


def test_progress_counts_every_step_of_every_episode_once() -> None:
    counted = []
    env = LeggedEnvironment(ROBOT, 3, threads=1)
    try:
        results = list(run_episodes(env, Constant(8.0), SPECS[:2], progress=counted.append))
    finally:
        env.close()
    assert sum(counted) == sum(r.length for r in results)
    assert all(r.record is None for r in results)
    assert run(Constant(), [], robots=2) == []


def executed(result: EpisodeResult) -> np.ndarray:
    """(T, 12) float32: what the policy chose plus the episode's action noise."""
    return recorded(result).action + result.draws.action_noise[: result.length]


def test_every_episode_runs_once_and_its_record_is_whole(results: list[EpisodeResult]) -> None:
    assert sorted(r.spec.index for r in results) == sorted(s.index for s in SPECS)
    for result in results:
        record, steps = recorded(result), result.length
        assert record.action.shape == (steps, N_JOINTS)
        assert record.state.shape == (steps, STATE_DIM)
        assert result.terminated == (steps < EPISODE_STEPS)
        assert result.episode_return == pytest.approx(float(record.reward.sum()), abs=1e-3)
        after = np.concatenate([record.obs[1:], record.final_obs[None]])
        np.testing.assert_array_equal(after[:, LAST_ACTION], executed(result))
        noisy = (after[:, LAST_ACTION] != record.action).any()
        assert noisy == (result.spec.action_noise > 0)


@pytest.mark.parametrize("number", [1, 4, 7])
def test_an_episode_alone_is_the_same_episode_among_others_bit_for_bit(
    results: list[EpisodeResult], number: int
) -> None:
    result = next(r for r in results if r.spec is SPECS[number])
    record, actions = recorded(result), executed(result)
    env = LeggedEnvironment(ROBOT, 1, threads=1)
    try:
        env.reset(np.arange(1), [result.spec])
        observation = env.observe()
        for step in range(result.length):
            np.testing.assert_array_equal(observation.policy[0], record.obs[step])
            state = env.physics.state
            np.testing.assert_array_equal(
                state.base_pos[0].astype(np.float32), record.state[step, :3]
            )
            transition = env.step(actions[step : step + 1])
            assert transition.reward[0] == record.reward[step]
            observation = transition.observation
            ended = bool(transition.terminated[0])
            assert ended == (result.terminated and step == result.length - 1)
        np.testing.assert_array_equal(observation.policy[0], record.final_obs)
        assert env.success(0, result.terminated) == result.success
    finally:
        env.close()


def test_where_the_world_is_fixed_all_robots_start_together_and_run_the_same_episodes(
    results: list[EpisodeResult],
) -> None:
    env = LeggedEnvironment(ROBOT, 3, threads=1)
    env.physics.fixed_world = True
    policy, started, reset = load_expert().policy, [], env.reset

    def heard(ids: np.ndarray, specs: list[EpisodeSpec]) -> None:
        started.append(ids.tolist())
        reset(ids, specs)

    env.reset = heard
    try:
        waves = list(run_episodes(env, policy, SPECS, record=True))
    finally:
        env.close()
    assert started == [[0, 1, 2], [0, 1, 2], [0, 1]]
    expected = {result.spec.index: result for result in results}
    assert sorted(result.spec.index for result in waves) == sorted(expected)
    for result in waves:
        same = expected[result.spec.index]
        assert (result.length, result.episode_return) == (same.length, same.episode_return)
        np.testing.assert_array_equal(recorded(result).obs, recorded(same).obs)


def test_the_catalog_holds_the_draws_that_were_simulated() -> None:
    env = LeggedEnvironment(ROBOT, 2, threads=1, episode_steps=5)
    simulated = []
    reset = env.physics.reset

    def coarse(draws: np.ndarray) -> np.ndarray:
        return np.round(draws, 1)

    def heard(index: int, start: RobotStart) -> None:
        simulated.append(start.draws.copy())
        reset(index, start)

    env.physics.realised, env.physics.reset = coarse, heard
    try:
        results = list(run_episodes(env, Constant(), SPECS[1::-1], record=True))
    finally:
        env.close()
    catalog = part_catalog(results, ROBOT, ("mujoco", "1"), ("none", "0"))
    for name, values in zip(DEFAULT.names, np.transpose(simulated), strict=False):
        assert catalog[name] == values.tolist() == np.round(values, 1).tolist()


def test_a_part_holds_the_episodes_in_the_plans_order_and_survives_the_store(
    results: list[EpisodeResult], falls: list[EpisodeResult], tmp_path: Path
) -> None:
    store = Store.create(tmp_path / "legged.zarr", legged_schema(ROBOT))
    steps, per_episode = part_arrays(results, legged_schema(ROBOT))
    ordered = sorted(results, key=lambda r: r.spec.index)
    ends = np.cumsum([r.length for r in ordered])
    assert {len(values) for values in steps.values()} == {int(ends[-1])}
    for number, (result, end) in enumerate(zip(ordered, ends, strict=True)):
        record, rows = recorded(result), slice(end - result.length, end)
        for name in steps:
            np.testing.assert_array_equal(steps[name][rows], getattr(record, name))
        np.testing.assert_array_equal(per_episode["final_obs"][number], record.final_obs)
    catalog = part_catalog(results, ROBOT, ("mujoco", "0"), ("expert", "abc"))
    store.write_part("a", steps, catalog, per_episode)
    steps_of_falls, final = part_arrays(falls, legged_schema(ROBOT))
    rows_of_falls = part_catalog(falls, ROBOT, ("mujoco", "0"), ("constant", "def"))
    rows_of_falls["episode"] = [1, 2]
    store.write_part("b", steps_of_falls, rows_of_falls, final)
    assert store.verify() == []

    assert all(r.terminated and not r.success and r.length < EPISODE_STEPS for r in falls)
    episodes = store.select(part="a").episodes().sort_by("episode").to_pylist()
    for row, result in zip(episodes, ordered, strict=True):
        assert row["terrain"] == result.spec.terrain
        assert row["level"] == result.spec.level
        assert row["skill"] == result.spec.skill
        assert row["seed"] == result.spec.seed
        assert row["action_noise"] == result.spec.action_noise
        assert row["terrain_variant"] == result.draws.terrain_variant
        assert row["length"] == result.length
        assert row["return"] == pytest.approx(result.episode_return)
        assert (row["success"], row["terminated"]) == (result.success, result.terminated)
        assert row["truncated"] != row["terminated"]
        assert row["push_step"] == result.draws.push_step
        assert [row[name] for name in DEFAULT.names] == result.draws.draws.tolist()[:N_STANDARD]
        mean_command = recorded(result).obs[:, COMMAND].mean(axis=0)
        found = [row[f"command_{name}"] for name in COMMAND_NAMES]
        np.testing.assert_allclose(found, mean_command, atol=1e-5)
    for name, values in {**steps, **per_episode}.items():
        np.testing.assert_array_equal(store.select(part="a").read(name), values)


def test_the_catalog_tells_what_stood_in_the_way() -> None:
    specs = [
        EpisodeSpec(k, "flat", 5, skill, seed=k)
        for k, skill in enumerate(("crawl", "squeeze", "tilt", "run"))
    ]
    fallen = run(Constant(8.0), specs, robots=4)
    rows = part_catalog(fallen, ROBOT, ("mujoco", "0"), ("constant", "abc"))
    assert rows["passage"] == ["bar", "walls", "walls", "none"]
    for number, result in enumerate(sorted(fallen, key=lambda r: r.spec.index)):
        passage = result.draws.passage or Passage("none", 0.0, 0.0, 0.0)
        found = [rows[f"passage_{name}_m"][number] for name in ("start", "depth", "opening")]
        assert found == [passage.start_m, passage.depth_m, passage.opening_m]


def test_the_plan_covers_every_pair_of_terrain_and_skill_and_every_level() -> None:
    grid = CollectionGrid(parts=4, episodes_per_part=300)
    specs = [s for part in grid.part_ids("00abcd") for s in grid.part_specs(part)]
    assert len({s.index for s in specs}) == len(specs) == 1200
    assert len({s.seed for s in specs}) == len(specs)
    pairs = {(t, s.name) for s in SKILLS.values() for t in TERRAINS if s.commanded_on(t)}
    assert {(s.terrain, s.skill) for s in specs} == pairs
    assert {s.level for s in specs} == set(range(10))
    for pair in pairs:
        cell = [s for s in specs if (s.terrain, s.skill) == pair]
        assert len({s.level for s in cell}) == 10
        noise, counts = np.unique([s.action_noise for s in cell], return_counts=True)
        assert noise.tolist() == sorted(grid.action_noise)
        assert counts.max() < 1.5 * counts.min()


def test_parts_are_functions_of_their_names_and_do_not_depend_on_how_many_there_are() -> None:
    few, many = CollectionGrid(parts=2), CollectionGrid(parts=9)
    assert few.part_specs("00abcd-00001") == many.part_specs("00abcd-00001")
    assert few.part_specs("00abcd-00001") != few.part_specs("00abcd-00000")
    other_plan = few.part_specs("00abce-00001")
    assert not {s.index for s in other_plan} & {s.index for s in few.part_specs("00abcd-00001")}


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"terrains": ("moon",)}, "unknown terrain 'moon'; allowed: flat"),
        ({"skills": ("fly",)}, "unknown skill 'fly'; allowed: stand"),
        ({"levels": (10,)}, "level 10 is outside 0-9"),
        ({"levels": ()}, "at least one level"),
        ({"parts": 0}, r"must be (at least 1|1 to 100,000), got 0"),
        ({"episodes_per_part": -3}, "episodes_per_part must be 1 to 10,000, got -3"),
        ({"action_noise": ()}, "at least one standard deviation"),
        ({"action_noise": (-0.1,)}, "none negative"),
        ({"action_noise": (float("nan"),)}, "none negative"),
        ({"terrains": ("stairs",), "skills": ("run",)}, "none of the skills run is commanded on"),
        ({"seed": -1}, "seed"),
    ],
)
def test_an_impossible_plan_is_refused(changes: dict, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint) as refusal:
        CollectionGrid(**changes)
    assert "\n" not in str(refusal.value)
    shared = {"episodes" if name == "parts" else name: value for name, value in changes.items()}
    if shared.keys() <= {field.name for field in fields(EvaluationGrid)}:
        with pytest.raises(ValueError, match=complaint):
            EvaluationGrid(**shared)


def test_evaluation_uses_held_out_episodes_and_sums_up_every_cell() -> None:
    grid = EvaluationGrid(("flat", "stairs"), ("stand", "run"), levels=(0, 3), episodes=2)
    specs = grid.specs()
    assert all(s.held_out and s.action_noise == 0 for s in specs)
    assert specs == grid.specs(), "the same episodes for every policy"
    collected = {s.seed for k in range(3) for s in CollectionGrid().part_specs(f"0-{k:05d}")}
    assert not collected & {s.seed for s in specs}
    env = LeggedEnvironment(ROBOT, 5, threads=1)
    try:
        cells = evaluate(Constant(8.0), env, grid)
    finally:
        env.close()
    specs = [result.spec for results in cells for result in results]
    assert {(spec.terrain, spec.skill, spec.level) for spec in specs} == {
        (terrain, skill, level)
        for terrain, skill in [("flat", "stand"), ("flat", "run"), ("stairs", "stand")]
        for level in (0, 3)
    }
    for cell in cells:
        assert [(each.success, each.terminated) for each in cell] == [(False, True)] * 2
        measures = cell_measures(cell)
        # The legs are thrown up in one step, by 8 x 0.25 rad in 0.02 s, and then held there.
        assert measures["action_rate_p99"] <= 100.0
        assert 0.0 < measures["torque_p99"] <= ROBOT.torque_limit_nm.max() + 1e-3


class OneRow(Constant):
    """Gives the actions of one robot, whatever the number of robots."""

    def act(self, observation: Observation) -> np.ndarray:
        return super().act(observation)[:1]


def test_actions_of_another_number_of_robots_are_refused() -> None:
    """One row would be stretched over all robots."""
    with pytest.raises(ValueError, match=r"shape \(1, 12\) for 2 robots; needed: 2 rows of 12"):
        run(OneRow(0.0), SPECS[:2], robots=2)
