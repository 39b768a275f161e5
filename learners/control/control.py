"""Learned policies in the control loop of N robots."""

from collections.abc import Mapping
from typing import Protocol

import numpy as np
import torch

from gaitforge.learners.control.compiled_step import CompiledStep, compiled_step
from gaitforge.learners.models.fcnet import FCNet
from gaitforge.learners.models.registry import count_parameters
from gaitforge.learners.policy_network import PolicyNetwork
from gaitforge.learners.tokens import RETURN_TO_GO, TARGET

# More weights do not fit a core's L2 cache, and torch then reads them once for all robots.
_CACHED_WEIGHTS = 1_000_000
_FEW_ROBOTS = 20


class ControlObservation(Protocol):
    """The parts of an observation of N robots that a learned policy reads."""

    @property
    def policy(self) -> np.ndarray:
        """(N, Ds) float32, the stored observation."""
        ...

    @property
    def reward(self) -> np.ndarray:
        """(N,) reward of the previous step; not read on an episode's first step."""
        ...


class TorchStep:
    """`PolicyNetwork.step` of N robots, with their state; the interface of `CompiledStep`."""

    @torch.inference_mode()
    def __init__(self, policy: PolicyNetwork, num_robots: int) -> None:
        self._policy = policy
        self._state = policy.init_state(num_robots)

    @torch.inference_mode()
    def reset(self, ids: np.ndarray) -> None:
        """Start a new episode for the robots `ids`."""
        self._policy.reset_state(self._state, torch.from_numpy(ids))

    @torch.inference_mode()
    def step(self, obs: np.ndarray, condition: np.ndarray | None) -> np.ndarray:
        """One control step: obs (N, Do) and condition (N, C) -> (N, A); float32."""
        numbers = None if condition is None else torch.from_numpy(condition)
        action, self._state = self._policy.step(torch.from_numpy(obs), self._state, numbers)
        return action.numpy()


def fastest_step(policy: PolicyNetwork, num_robots: int) -> CompiledStep | TorchStep:
    """The fastest control step of a policy; all give the same actions to float32's rounding.

    Measured on one thread of a Xeon with AVX-512, torch's time over the compiled step's:

        network             parameters  1 robot  20 robots  128 robots  240 robots
        FCNet               0.25 M      11       3.5        1.4 to 1.8  1.8 to 2.0
        FCNet               0.79 M      6        1.4 to 2.9 1.1         1.1
        FCNet               2.6 M       3        0.7 to 0.9
        BoT, 6 layers of 32 0.07 M      8        1.9 to 2.7 0.7         0.7
        BoT, 3 layers of 64 0.09 M      6        1.2 to 1.5 0.7         0.7
        BoT                 17 M        0.7 to 0.9
        body MLP            0.26 M      8 to 12 1.2 to 2.1  0.3 to 0.7
        MLP                 0.25 M      12      1.4         0.5

    The Transformers have the bounds of BoT and the MLPs; several robots were not measured there.
    """
    small = count_parameters(policy) <= _CACHED_WEIGHTS
    if not isinstance(policy.network, FCNet):
        faster = small and num_robots <= _FEW_ROBOTS
    else:
        faster = small or num_robots == 1
    if faster and all(
        parameter.device.type == "cpu" and parameter.dtype == torch.float32
        for parameter in policy.parameters()
    ):
        return compiled_step(policy, num_robots) or TorchStep(policy, num_robots)
    return TorchStep(policy, num_robots)


class LearnedPolicy:
    """A policy network that controls `num_robots` robots, with its present weights.

    A return-conditioned policy is asked for `return_target` (1.0 = the expert's return; or a target
    for each label by name) and, if it knows the return-to-go, subtracts the rewards. One that also
    acts without labels can be asked more strongly: its action is that without a condition plus
    `guidance` times the difference that the condition makes (classifier-free guidance, Ho and
    Salimans 2022, arXiv 2207.12598).

    With a `sample_seed` actions are drawn from a Gaussian policy, otherwise they are its mean. They
    are clipped to +-`action_limit`. A policy that keeps the
    last action gets the one that `act` returned, and zeros at an episode's start. Raises ValueError
    for values outside their ranges.

    The network's state is cleared every `reset_every` steps of an episode, 0 for never, as FCNet's
    published evaluation does every 64 steps (github.com/thkkk/FCNet, FCNet/DT/d4rl/d4rl_eval.py).
    Return-to-go and last action stay. Deviation: the published return-to-go starts anew at step 64.
    """

    def __init__(
        self,
        network: PolicyNetwork,
        num_robots: int,
        name: str = "learned",
        return_target: float | Mapping[str, float] = 1.0,
        sample_seed: int | None = None,
        action_limit: float = float("inf"),
        reset_every: int = 0,
        guidance: float = 1.0,
    ) -> None:
        if num_robots < 1:
            raise ValueError(f"num_robots must be at least 1, got {num_robots}")
        asked = return_target if isinstance(return_target, Mapping) else {TARGET: return_target}
        if not np.isfinite([*asked.values()]).all():
            raise ValueError(f"return_target must be a finite number, got {return_target}")
        if not action_limit > 0:
            raise ValueError(f"action_limit must be above 0, got {action_limit}")
        if reset_every < 0:
            raise ValueError(f"reset_every must not be negative, got {reset_every}")
        guided = guidance != 1.0
        if not np.isfinite(guidance) or (guided and not network.condition.hides):
            raise ValueError(
                f"guidance {guidance} needs a finite number, and a policy that was trained with "
                "condition_hidden above 0"
            )
        self.name = name
        self.num_robots = num_robots
        self._reset_every = reset_every
        self._age = np.zeros(num_robots, dtype=np.int64)
        self._limit = action_limit
        self._layout = network.layout
        self._guidance = guidance
        self._condition = network.condition if network.conditioned else None
        self._share = network.share
        self._asked = {
            name: np.full(num_robots, value, np.float32) for name, value in asked.items()
        }
        remaining = asked.get(RETURN_TO_GO, asked.get(TARGET, 1.0))
        self._target = np.float32(network.return_at(remaining))
        self._remaining = np.full(num_robots, self._target, dtype=np.float32)
        self._first = np.ones(num_robots, dtype=bool)
        self._last_action = np.zeros((num_robots, network.act_dim), dtype=np.float32)
        self._body = np.tile(network.body.numpy(), (num_robots, 1))
        if np.isnan(self._body).any():
            raise ValueError(f"policy {name} reads the robot's body; give it by `drive`")
        self._generator = torch.Generator().manual_seed(sample_seed or 0)
        self._std = None if sample_seed is None else network.action_std().detach()
        self._guided = guided
        self._step = fastest_step(network.eval(), num_robots * (1 + guided))

    def reset(self, ids: np.ndarray) -> None:
        """Start a new episode for the robots `ids`."""
        ids = np.asarray(ids, dtype=np.int64)
        self._remaining[ids] = self._target
        self._first[ids] = True
        self._last_action[ids] = 0.0
        self._age[ids] = 0
        self._reset_step(ids)

    def act(self, observation: ControlObservation) -> np.ndarray:
        """(N, A) float32 actions for one control step."""
        expected = (self.num_robots, self._layout.stored_dim)
        if observation.policy.shape != expected:
            raise ValueError(
                f"policy {self.name} controls observations of shape {expected}, got "
                f"{observation.policy.shape}"
            )
        obs = np.ascontiguousarray(observation.policy, dtype=np.float32)
        if self._layout.body_fields:
            obs = np.concatenate([obs, self._body], axis=1)
        if self._layout.keeps_last_action:
            obs = np.concatenate([obs, self._last_action], axis=1)
        if self._reset_every:
            self._reset_step(np.flatnonzero(self._age % self._reset_every == 0))
            self._age += 1
        action = self._asked_action(obs, self._condition_now(observation))
        if self._std is not None:
            noise = torch.randn(action.shape, generator=self._generator)
            action += (self._std * noise).numpy()
        if self._limit < np.inf:
            np.clip(action, -self._limit, self._limit, out=action)
        self._last_action[:] = action
        return action

    def executed(self, actions: np.ndarray) -> None:
        """Take (N, A) as the last actions in place of what `act` returned."""
        self._last_action[:] = actions

    def _reset_step(self, ids: np.ndarray) -> None:
        """Clear the network's state, also of the copies that act without a condition."""
        self._step.reset(np.concatenate([ids, ids + self.num_robots]) if self._guided else ids)

    def _asked_action(self, obs: np.ndarray, condition: np.ndarray | None) -> np.ndarray:
        """The network's actions (N, A), with guidance."""
        if not self._guided or condition is None:
            return self._step.step(obs, condition)
        both = np.concatenate([condition, np.zeros_like(condition)])
        conditioned, unconditioned = np.split(self._step.step(np.concatenate([obs, obs]), both), 2)
        return unconditioned + np.float32(self._guidance) * (conditioned - unconditioned)

    def _condition_now(self, observation: ControlObservation) -> np.ndarray | None:
        """The condition (N, C) of this step; None for a policy that has none."""
        if self._condition is None:
            return None
        self._remaining -= np.where(self._first, 0.0, observation.reward).astype(np.float32)
        self._first[:] = False
        targets = {**self._asked, RETURN_TO_GO: self._share(self._remaining)}
        return np.stack(self._condition.in_control(targets), axis=1).astype(np.float32)
