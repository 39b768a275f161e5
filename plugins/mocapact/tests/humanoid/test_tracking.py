"""The task: dm_control's environment, and the batch against it."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gaitforge.collectors.policy import StoredObservation
from gaitforge.plugins.mocapact.humanoid.clips.reference import read_clip
from gaitforge.plugins.mocapact.humanoid.clips.snippets import Snippet
from gaitforge.plugins.mocapact.humanoid.environment import TERMINATION_ERROR, TrackingEnvironment
from gaitforge.plugins.mocapact.humanoid.experts.experts import PDExpert
from gaitforge.plugins.mocapact.humanoid.experts.features import observed_features
from gaitforge.plugins.mocapact.humanoid.experts.humanoid_batch import TrackingBatch
from gaitforge.plugins.mocapact.humanoid.walker import load_humanoid
from gaitforge.plugins.mocapact.tests.conftest import SNIPPETS

STEP = 1


def pd_action(observation: np.ndarray) -> np.ndarray:
    seen = StoredObservation(observation[None], np.zeros(1, dtype=np.float32))
    return PDExpert().act(seen)[0]


@pytest.fixture
def batch(humanoid_reference: Path) -> TrackingBatch:
    clip = read_clip(humanoid_reference, SNIPPETS[STEP].clip)
    return TrackingBatch(load_humanoid(), clip, SNIPPETS[STEP], 3, threads=2)


def test_a_batch_does_what_the_environment_does(
    environment: TrackingEnvironment, batch: TrackingBatch
) -> None:
    start, row = 8, 2
    observation = environment.reset(STEP, start)
    batch.reset(np.arange(3), np.array([5, 20, start]))
    rng = np.random.default_rng(0)
    for _ in range(20):
        np.testing.assert_allclose(
            batch.features()[row], observed_features(observation[None])[0], atol=2e-6
        )
        action = pd_action(observation) + rng.normal(0.0, 0.1, 56)
        theirs = environment.step(action)
        ours = batch.step(np.tile(action, (3, 1)))
        observation = theirs.observation
        np.testing.assert_allclose(ours.reward[row], theirs.reward, atol=1e-6)
        for mine, its in zip(batch.positions(), environment.state(), strict=True):
            np.testing.assert_allclose(mine[row], its, atol=1e-6)
        assert ours.terminated[row] == theirs.terminated
        assert ours.truncated[row] == theirs.truncated
        if theirs.terminated or theirs.truncated:
            break
    assert batch.frame[row] >= start + 15


def test_both_end_a_fall_at_the_same_step(
    environment: TrackingEnvironment, batch: TrackingBatch
) -> None:
    environment.reset(STEP)
    batch.reset(np.arange(3), np.full(3, SNIPPETS[STEP].start))
    limp = np.zeros(56)
    for step in range(SNIPPETS[STEP].steps):
        theirs, ours = environment.step(limp), batch.step(np.zeros((3, 56)))
        assert ours.terminated.tolist() == [theirs.terminated] * 3
        assert (ours.terminated == (ours.error > TERMINATION_ERROR)).all()
        if theirs.terminated:
            assert step > 3
            return
    pytest.fail("the humanoid tracks the clip without actuation")


@settings(max_examples=3)
@given(st.permutations(range(4)), st.integers(1, 3))
def test_humanoids_of_a_batch_do_not_depend_on_each_other(
    humanoid_reference: Path, order: list[int], threads: int
) -> None:
    clip, snippet = read_clip(humanoid_reference, "squat_00"), SNIPPETS[0]
    rng = np.random.default_rng(1)
    actions = rng.uniform(-1.0, 1.0, (3, 4, 56))
    frames = np.array([0, 6, 11, 20])

    def end(rows: list[int], threads: int) -> np.ndarray:
        batch = TrackingBatch(load_humanoid(), clip, snippet, 4, threads)
        batch.reset(np.arange(4), frames[rows])
        for action in actions:
            batch.step(action[rows])
        batch.close()
        return np.concatenate(batch.positions(), axis=1)

    np.testing.assert_array_equal(end(order, threads), end([0, 1, 2, 3], 1)[order])


def test_a_partial_reset_leaves_the_others(batch: TrackingBatch) -> None:
    batch.reset(np.arange(3), np.array([5, 6, 7]))
    batch.step(np.zeros((3, 56)))
    before = batch.positions()[0]
    batch.reset(np.array([1]), np.array([15]))
    after = batch.positions()[0]
    np.testing.assert_array_equal(after[[0, 2]], before[[0, 2]])
    assert batch.frame.tolist() == [6, 15, 8]


def test_episodes_are_functions_of_their_start_and_actions(
    environment: TrackingEnvironment,
) -> None:
    def episode() -> list[np.ndarray]:
        seen = [environment.reset(0, 4)]
        for _ in range(3):
            seen.append(environment.step(pd_action(seen[-1])).observation)
        return seen

    first = episode()
    environment.reset(1, 10)
    environment.step(np.ones(56))
    np.testing.assert_array_equal(first, episode())


def test_a_snippet_ends_five_frames_early(environment: TrackingEnvironment) -> None:
    snippet = SNIPPETS[STEP]
    environment.reset(STEP, snippet.last_frame - 2)
    results = [environment.step(np.zeros(56)) for _ in range(2)]
    assert [result.truncated for result in results] == [False, True]
    assert not results[-1].terminated
    with pytest.raises(ValueError, match="reset the environment"):
        environment.step(np.zeros(56))


def test_tracking_earns_most_and_actions_beyond_the_range_are_clipped(
    environment: TrackingEnvironment,
) -> None:
    observation = environment.reset(0)
    tracked = environment.step(pd_action(observation)).reward
    environment.reset(0)
    flailing = environment.step(np.ones(56))
    assert flailing.reward < tracked <= 1.45
    environment.reset(0)
    wide = environment.step(np.full(56, 7.0))
    np.testing.assert_array_equal(wide.observation, flailing.observation)


def test_snippets_outside_the_file_are_refused(
    environment: TrackingEnvironment, humanoid_reference: Path
) -> None:
    with pytest.raises(ValueError, match="ends after its clip's last frame, 39"):
        TrackingEnvironment(humanoid_reference, [Snippet("squat_00", 0, 40)])
    with pytest.raises(ValueError, match="has no clip run_00"):
        TrackingEnvironment(humanoid_reference, [Snippet("run_00", 0, 20)])
    with pytest.raises(ValueError, match="at least one snippet"):
        TrackingEnvironment(humanoid_reference, [])
    with pytest.raises(ValueError, match="has no episode that starts at frame 30"):
        environment.reset(STEP, 30)
