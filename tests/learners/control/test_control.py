"""Learned policies in the control loop."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from gaitforge.learners.control.control import LearnedPolicy
from gaitforge.learners.policy_network import GaussianSpread
from gaitforge.learners.tokens import Condition
from tests.learners.making import Seen, make_policy


def observations(steps: int, robots: int, seed: int = 0) -> list[Seen]:
    rng = np.random.default_rng(seed)
    return [
        Seen(
            rng.standard_normal((robots, 70), dtype=np.float32),
            rng.uniform(0, 1, robots).astype(np.float32),
        )
        for _ in range(steps)
    ]


def test_control_equals_the_network_over_the_whole_history() -> None:
    network = make_policy()
    policy = LearnedPolicy(network, num_robots=3, name="fcnet")
    seen = observations(25, 3)
    policy.reset(np.arange(3))
    actions = np.stack([policy.act(each) for each in seen], axis=1)
    with torch.no_grad():
        expected = network(torch.from_numpy(np.stack([each.policy for each in seen], axis=1)))
    assert actions.dtype == np.float32
    np.testing.assert_allclose(actions, expected.numpy(), atol=5e-5)


@pytest.mark.parametrize("tokens", ["obs", "return"])
def test_resetting_some_robots_leaves_the_others_alone(tokens: str) -> None:
    network = make_policy(tokens=tokens, return_scale=5.0)
    policy, undisturbed = (LearnedPolicy(network, num_robots=4) for _ in range(2))
    late = LearnedPolicy(network, num_robots=4)
    for t, each in enumerate(observations(30, 4)):
        if t == 13:
            policy.reset(np.array([0, 2]))
        action, same = policy.act(each), undisturbed.act(each)
        np.testing.assert_allclose(action[[1, 3]], same[[1, 3]], atol=5e-5)
        if t == 13:
            assert not np.allclose(action[[0, 2]], same[[0, 2]], atol=1e-3)
        if t >= 13:
            np.testing.assert_allclose(action[[0, 2]], late.act(each)[[0, 2]], atol=5e-5)


@pytest.mark.parametrize("zero", [0.0, -7.0])
def test_return_to_go_starts_at_the_target_and_counts_rewards_down(zero: float) -> None:
    network = make_policy(tokens="return", return_scale=40.0)
    shifted = make_policy(tokens="return", return_scale=40.0, return_zero=zero)
    policy = LearnedPolicy(shifted, num_robots=2, return_target=1.5)
    seen = observations(10, 2)
    rewards = np.stack([each.reward for each in seen], axis=1)
    received = np.cumsum(rewards, axis=1) - rewards[:, :1]  # the first belongs to no step of ours
    actions = np.stack([policy.act(each) for each in seen], axis=1)
    with torch.no_grad():
        expected = network(
            torch.from_numpy(np.stack([each.policy for each in seen], axis=1)),
            torch.from_numpy((1.5 - received / 40.0).astype(np.float32))[..., None],
        )
    np.testing.assert_allclose(actions, expected.numpy(), atol=5e-5)


def test_a_memory_is_cleared_every_so_many_steps_of_each_episode() -> None:
    network, every, late = make_policy(tokens="return", return_scale=40.0), 4, 6
    policy = LearnedPolicy(network, num_robots=2, reset_every=every)
    seen = observations(14, 2)
    obs, rewards = (
        torch.from_numpy(np.stack([getattr(each, name) for each in seen], axis=1))
        for name in ("policy", "reward")
    )
    actions = []
    for t, each in enumerate(seen):
        if t == late:
            policy.reset(np.array([1]))  # its next clearings are at 10 and 14, the other's at 8, 12
        actions.append(policy.act(each))
    for robot, starts in enumerate(([0, 4, 8, 12, 14], [0, 4, late, 10, 14])):
        for start, stop in pairwise(starts):
            episode = late if robot and start >= late else 0
            received = rewards[robot, episode:stop].cumsum(0) - rewards[robot, episode]
            target = (40.0 - received)[start - episode :]
            with torch.no_grad():
                expected = network(obs[robot, start:stop][None], target[None, :, None] / 40.0)[0]
            got = np.stack([action[robot] for action in actions[start:stop]])
            np.testing.assert_allclose(got, expected.numpy(), atol=5e-5)


def test_a_gaussian_policy_acts_by_its_mean_unless_asked_to_sample() -> None:
    network = make_policy(gaussian=GaussianSpread(12, fixed_std=0.1))
    each = observations(1, 2000)[0]
    mean = LearnedPolicy(network, num_robots=2000).act(each)
    assert np.array_equal(mean, LearnedPolicy(make_policy(), num_robots=2000).act(each))
    drawn, again, other = (
        LearnedPolicy(network, num_robots=2000, sample_seed=seed).act(each) for seed in (1, 1, 2)
    )
    assert np.array_equal(drawn, again)
    assert not np.array_equal(drawn, other)
    spread = (drawn - mean).std(axis=0) / network.action_normaliser.std.numpy()
    np.testing.assert_allclose(spread, 0.1, rtol=0.1)


def test_wrong_use_is_refused() -> None:
    network = make_policy()
    with pytest.raises(ValueError, match="num_robots"):
        LearnedPolicy(network, num_robots=0)
    with pytest.raises(ValueError, match="return_target"):
        LearnedPolicy(network, num_robots=1, return_target=float("nan"))
    both = Condition(("return_to_go", "driver"))
    conditioned = make_policy(tokens="return", condition=both)
    with pytest.raises(ValueError, match="return_target needs a target for driver, too"):
        LearnedPolicy(conditioned, num_robots=1, return_target={"return_to_go": 1.0})
    with pytest.raises(ValueError, match="reset_every must not be negative"):
        LearnedPolicy(network, num_robots=1, reset_every=-1)
    with pytest.raises(ValueError, match="deterministic and cannot be sampled"):
        LearnedPolicy(network, num_robots=1, sample_seed=0)
    with pytest.raises(ValueError, match=r"shape \(2, 70\)"):
        LearnedPolicy(network, num_robots=2).act(observations(1, 3)[0])
