"""Learned policies in the control loop of N robots."""

from typing import Protocol

import numpy as np
import torch

from learners.policy.policy_network import PolicyNetwork


class ControlObservation(Protocol):
    """What a learned policy reads of an observation of N robots."""

    @property
    def policy(self) -> np.ndarray:
        """(N, Ds) float32, the stored observation."""
        ...

    @property
    def reward(self) -> np.ndarray:
        """(N,) reward of the previous step; not read on an episode's first step."""
        ...


class LearnedPolicy:
    """A policy network that controls `num_robots` robots.

    A return-conditioned policy starts each episode with `return_target` (1.0 = the expert's return)
    and subtracts the rewards. With `sample` actions are drawn from a Gaussian policy, by `seed`;
    otherwise they are its mean. Actions are clipped to +-`action_limit`. A policy that keeps the
    last action gets what `act` returned, and zeros at an episode's start. Raises ValueError for
    values outside their ranges.
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
        self._last_action = torch.zeros(num_robots, network.act_dim)
        self._generator = torch.Generator().manual_seed(seed)
        with torch.inference_mode():
            self._std = network.action_std() if sample else None
            self._state = network.init_state(num_robots)

    def reset(self, ids: np.ndarray) -> None:
        """Start a new episode for the robots `ids`."""
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
