"""Learned policies in the control loop, N robots at once."""

from typing import Protocol

import numpy as np
import torch

from learners.policy_network import PolicyNetwork


class ControlObservation(Protocol):
    """The part of an observation that a learned policy reads, N robots."""

    @property
    def policy(self) -> np.ndarray:
        """(N, Do) float32."""
        ...

    @property
    def reward(self) -> np.ndarray:
        """(N,) reward of the step before; not read on an episode's first step."""
        ...


class LearnedPolicy:
    """A policy network that controls `num_robots` robots and keeps their histories.

    A return-conditioned network starts each episode with `return_target` (1.0 = the expert's mean
    return) and counts the rewards received since. With `sample` the actions are drawn from a
    Gaussian network, the same ones for the same `seed`; without, they are its mean.
    """

    def __init__(
        self,
        network: PolicyNetwork,
        num_robots: int,
        name: str = "learned",
        return_target: float = 1.0,
        sample: bool = False,
        seed: int = 0,
    ) -> None:
        """Raises ValueError unless num_robots >= 1, return_target is finite, and a network to
        sample from is Gaussian."""
        if num_robots < 1:
            raise ValueError(f"num_robots must be at least 1, got {num_robots}")
        if not np.isfinite(return_target):
            raise ValueError(f"return_target must be a finite number, got {return_target}")
        self.name = name
        self.num_robots = num_robots
        self._network = network.eval()
        self._target = np.float32(return_target * float(network.return_scale))
        self._remaining = np.full(num_robots, self._target, dtype=np.float32)
        self._first = np.ones(num_robots, dtype=bool)
        self._generator = torch.Generator().manual_seed(seed)
        with torch.inference_mode():
            self._std = network.action_std() if sample else None
            self._state = network.init_state(num_robots)

    def reset(self, ids: np.ndarray) -> None:
        """Forget the history of the robots `ids`: their next observation starts an episode."""
        ids = np.asarray(ids, dtype=np.int64)
        self._remaining[ids] = self._target
        self._first[ids] = True
        with torch.inference_mode():
            self._network.reset_state(self._state, torch.from_numpy(ids))

    def act(self, observation: ControlObservation) -> np.ndarray:
        """(N, 12) float32 actions for one control step."""
        expected = (self.num_robots, self._network.layout.obs_dim)
        if observation.policy.shape != expected:
            raise ValueError(
                f"policy {self.name} controls observations of shape {expected}, got "
                f"{observation.policy.shape}"
            )
        with torch.inference_mode():
            obs = torch.from_numpy(np.ascontiguousarray(observation.policy, dtype=np.float32))
            action, self._state = self._network.step(
                obs, self._state, self._return_to_go(observation)
            )
            if self._std is not None:
                noise = torch.randn(action.shape, generator=self._generator)
                action = action + self._std * noise
            return action.numpy()

    def _return_to_go(self, observation: ControlObservation) -> torch.Tensor | None:
        if not self._network.conditioned:
            return None
        self._remaining -= np.where(self._first, 0.0, observation.reward).astype(np.float32)
        self._first[:] = False
        return torch.from_numpy(self._remaining)
