"""Learned policies in the control loop, N robots at once."""

from typing import Protocol

import numpy as np
import torch

from learners.policy.policy_network import PolicyNetwork


class ControlObservation(Protocol):
    """The part of an observation that a learned policy reads, N robots."""

    @property
    def policy(self) -> np.ndarray:
        """(N, Ds) float32, as it is stored."""
        ...

    @property
    def reward(self) -> np.ndarray:
        """(N,) reward of the step before; not read on an episode's first step."""
        ...


class LearnedPolicy:
    """A policy network that controls `num_robots` robots and keeps their histories.

    A return-conditioned network starts each episode with `return_target` (1.0 = the expert's mean
    return) and counts the rewards received since. With `sample` the actions are drawn from a
    Gaussian network, the same ones for the same `seed`; without, they are its mean. Actions are cut
    to +-`action_limit`, for environments that take no larger ones.

    Where the data's observation has no last action (`TokenLayout.keeps_last_action`), the last
    action of each robot is kept here, as `act` returned it, zeros at an episode's start.
    """

    def __init__(
        self,
        network: PolicyNetwork,
        num_robots: int,
        name: str = "learned",
        return_target: float = 1.0,
        sample: bool = False,
        seed: int = 0,
        action_limit: float = float("inf"),
    ) -> None:
        """Raises ValueError unless num_robots >= 1, return_target is finite, action_limit is above
        0, and a network to sample from is Gaussian."""
        if num_robots < 1:
            raise ValueError(f"num_robots must be at least 1, got {num_robots}")
        if not np.isfinite(return_target):
            raise ValueError(f"return_target must be a finite number, got {return_target}")
        if not action_limit > 0:
            raise ValueError(f"action_limit must be above 0, got {action_limit}")
        self.name = name
        self.num_robots = num_robots
        self._limit = action_limit
        self._network = network.eval()
        self._target = np.float32(return_target * float(network.return_scale))
        self._remaining = np.full(num_robots, self._target, dtype=np.float32)
        self._first = np.ones(num_robots, dtype=bool)
        act_dim = network.action_normaliser.mean.numel()
        self._last_action = torch.zeros(num_robots, act_dim)
        self._generator = torch.Generator().manual_seed(seed)
        with torch.inference_mode():
            self._std = network.action_std() if sample else None
            self._state = network.init_state(num_robots)

    def reset(self, ids: np.ndarray) -> None:
        """Forget the history of the robots `ids`: their next observation starts an episode."""
        ids = np.asarray(ids, dtype=np.int64)
        self._remaining[ids] = self._target
        self._first[ids] = True
        rows = torch.from_numpy(ids)
        with torch.inference_mode():
            self._last_action[rows] = 0.0
            self._network.reset_state(self._state, rows)

    def act(self, observation: ControlObservation) -> np.ndarray:
        """(N, A) float32 actions for one control step."""
        expected = (self.num_robots, self._network.layout.stored_dim)
        if observation.policy.shape != expected:
            raise ValueError(
                f"policy {self.name} controls observations of shape {expected}, got "
                f"{observation.policy.shape}"
            )
        with torch.inference_mode():
            obs = torch.from_numpy(np.ascontiguousarray(observation.policy, dtype=np.float32))
            action, self._state = self._network.step(
                self._network.observation(obs, self._last_action),
                self._state,
                self._return_to_go(observation),
            )
            if self._std is not None:
                noise = torch.randn(action.shape, generator=self._generator)
                action = action + self._std * noise
            action = action.clamp(-self._limit, self._limit)
            self._last_action.copy_(action)
            return action.numpy()

    def _return_to_go(self, observation: ControlObservation) -> torch.Tensor | None:
        if not self._network.conditioned:
            return None
        self._remaining -= np.where(self._first, 0.0, observation.reward).astype(np.float32)
        self._first[:] = False
        return torch.from_numpy(self._remaining)
