"""Learned policies in the control loop of N robots.

The step of most networks is compiled with numba, for one CPU thread (`CompiledStep`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from gaitforge.common.errors import listed
from gaitforge.learners.control.compiled_kernels import (
    bot_step,
    dense_step,
    fcnet_step,
    gelu_polynomial,
    transformer_step,
)
from gaitforge.learners.models.base import (
    BoundedNetwork,
    HistoryNetwork,
    SpectralMemory,
    StackedMemory,
)
from gaitforge.learners.models.body_attention import AttentionMask, in_threads
from gaitforge.learners.models.bot import BodyMLP, BoT, node_of_index
from gaitforge.learners.models.fcnet import FCNet, dft_angles
from gaitforge.learners.models.mlp import HistoryMLP
from gaitforge.learners.models.registry import count_parameters
from gaitforge.learners.models.transformer import (
    CausalNetwork,
    CausalTrunk,
    DecisionTransformer,
)
from gaitforge.learners.policy_network import PolicyNetwork
from gaitforge.learners.tokens import (
    BODY_SIGN,
    CONDITION,
    LAST_ACTION,
    RETURN_TO_GO,
    TARGET,
    TokenLayout,
)


@dataclass(frozen=True)
class StepProgram:
    """A network's control step for compiled loops, with a copy of its weights.

    Attributes:
        kernel: a function of `compiled_kernels`.
        source: (D,) the observation index of each token index; -1, -2, ... for the condition's.
        parts: all weights in the order in which the kernel reads them, float32.
        constants: further arrays and numbers of the kernel's `network`, after source and weights.
        state: arrays (N, ...) of the robots' memory, zeros at an episode's start.
        period: steps after which the state's slots repeat.
    """

    kernel: Callable[..., None]
    source: np.ndarray
    parts: tuple[np.ndarray, ...]
    constants: tuple[Any, ...]
    state: tuple[np.ndarray, ...]
    period: int

    @property
    def network(self) -> tuple[Any, ...]:
        """The kernel's `network`."""
        return self.source, np.concatenate([part.ravel() for part in self.parts]), *self.constants


class CompiledStep:
    """`PolicyNetwork.step` of N robots, with a copy of the weights and the robots' state."""

    def __init__(self, policy: PolicyNetwork, program: StepProgram) -> None:
        """Compile, which takes seconds the first time; later the code is read from disk."""
        self._kernel = program.kernel
        self._network = program.network
        self._state = program.state
        self._period = program.period
        self._slot = 0
        robots = len(self._state[0])
        self._shape = robots, policy.act_dim
        self._no_condition = np.zeros((robots, policy.layout.condition_dim), np.float32)
        self._bounds, self._filter = None, np.float32(policy.action_filter)
        if self._filter < 1.0:
            self._last_action = slice(*policy.layout.obs_slices[LAST_ACTION])
        self._sign_places = None
        if policy.layout.signed_fields:
            self._sign_places = np.array(policy.layout.sign_places)
            self._signs = slice(*policy.layout.obs_slices[BODY_SIGN])
        if isinstance(policy.network, BoundedNetwork):
            actions = policy.action_normaliser
            self._bounds = actions.mean.numpy().copy(), actions.std.numpy().copy()
        self.step(np.zeros((robots, policy.layout.obs_dim), np.float32), None)
        self.reset(np.arange(robots))

    def reset(self, ids: np.ndarray) -> None:
        """Start a new episode for the robots `ids`."""
        for array in self._state:
            array[ids] = 0.0

    def step(self, obs: np.ndarray, condition: np.ndarray | None) -> np.ndarray:
        """One control step: obs (N, Do) and condition (N, C), contiguous -> (N, A); float32."""
        if condition is None:
            condition = self._no_condition
        action = np.empty(self._shape, np.float32)
        seen = obs
        if self._sign_places is not None:
            signs = np.append(obs, np.ones((len(obs), 1), np.float32), axis=1)
            seen = obs * signs[:, self._sign_places]
        arguments = seen, condition, self._network, self._state, self._slot, action
        in_threads(self._kernel, len(action), *arguments)
        self._slot = (self._slot + 1) % self._period
        if self._bounds is not None:
            mean, std = self._bounds
            action = mean + std * np.tanh((action - mean) / std)
        if self._sign_places is not None:
            action = action * obs[:, self._signs]
        if self._filter < 1.0:
            last = obs[:, self._last_action]
            action = last + self._filter * (action - last)
        return action


def compiled_step(policy: PolicyNetwork, num_robots: int) -> CompiledStep | None:
    """The compiled step of a float32 policy on the CPU; None for kinds that have none."""
    program = step_program(policy, num_robots)
    return None if program is None else CompiledStep(policy, program)


def step_program(policy: PolicyNetwork, num_robots: int) -> StepProgram | None:
    """The program of a float32 policy's control step; None for kinds that have none.

    FCNet, BoT, the Transformers and the MLPs have one.
    """
    network = policy.network
    if isinstance(network, BoundedNetwork):
        network = network.network
    if isinstance(network, FCNet):
        return _fcnet(policy, network, num_robots)
    if isinstance(network, BoT):
        return _bot(policy, network, num_robots)
    if isinstance(network, HistoryMLP | BodyMLP):
        return _dense(policy, network, num_robots)
    if isinstance(network, CausalNetwork) and isinstance(network.trunk, CausalTrunk):
        return _causal(policy, network, network.trunk, num_robots)
    return None


def _fcnet(policy: PolicyNetwork, network: FCNet, robots: int) -> StepProgram:
    config = network.config
    d = config.hidden_dim
    h = config.decoder_dim
    n = config.context_len
    m = config.n_modes
    parts = _linear(network.encoder)
    for layer in network.layers:
        parts += [layer.spectral_norm.weight, layer.spectral_norm.bias]
        parts += [layer.spectral.init_state(1).readout]
        parts += [layer.ffn_norm.weight, layer.ffn_norm.bias]
        parts += _linear(layer.ffn[0]) + _linear(layer.ffn[2])
    parts += _linear(network.decoder[0]) + _linear(network.decoder[2])
    source, weights = _source_and_weights(policy, None, parts)
    angles = dft_angles(m, 2, n)[:, 1]
    turn = torch.stack([angles.cos(), angles.sin()]).numpy()
    state = (
        np.zeros((robots, n, config.n_layers, d), np.float32),
        np.zeros((robots, config.n_layers, 2 * m, d)),
    )
    constants = (turn, gelu_polynomial(), h)
    return StepProgram(fcnet_step, source, weights, constants, state, n)


def _bot(policy: PolicyNetwork, network: BoT, robots: int) -> StepProgram:
    config = network.config
    graph = network.graph
    v = len(graph.nodes)
    e = config.embed_dim
    (weight, bias), last = network.tokenizer.maps(), network.detokenizer.maps()
    parts: list[Any] = [bias if network.position is None else bias + network.position, weight]
    layer: Any
    for layer in network.layers:
        for linears, norm in (
            ((layer.qkv, layer.out), layer.attention_norm),
            ((layer.widen, layer.narrow), layer.feedforward_norm),
        ):
            parts += [tensor for linear in linears for tensor in _linear(linear)]
            parts += [norm.weight, norm.bias]
    parts += last
    source, weights = _source_and_weights(policy, network.chosen, parts)
    every_pair = AttentionMask(torch.ones(v, v, dtype=torch.bool))
    layer_masks = network.layer_masks()
    masks = [mask if isinstance(mask, AttentionMask) else every_pair for mask in layer_masks]
    columns = np.concatenate([mask.columns.numpy() for mask in masks])
    before = np.cumsum([0, *(len(mask.columns) for mask in masks)])[:-1, None]
    starts = np.stack([mask.starts.numpy() for mask in masks]) + before
    biases = [mask.detach().flatten() for mask in layer_masks if isinstance(mask, Tensor)]
    constants = (
        _waves(network.memory),
        node_of_index(graph.observations).numpy(),
        node_of_index(graph.actions).numpy(),
        starts,
        columns,
        torch.cat([torch.zeros(0), *biases]).numpy(),
        (e, config.n_heads, config.feedforward_dim, network.memory.numbers),
    )
    state = _memory_state(network, robots)
    return StepProgram(bot_step, source, weights, constants, state, network.memory.steps)


def _dense(policy: PolicyNetwork, network: HistoryMLP | BodyMLP, robots: int) -> StepProgram:
    nodes = np.empty(0, np.int64)
    gelu = gelu_polynomial()
    v = 0
    e = 0
    parts: list[Any] = []
    if isinstance(network, BodyMLP):
        nodes = node_of_index(network.graph.observations).numpy()
        gelu = np.empty(0, np.float32)
        parts += [network.tokenizer.bias, network.tokenizer.weight]
        v, e = network.tokenizer.bias.shape
        linears: list[Any] = [network.hidden[0], network.hidden[2], network.hidden[4]]
        linears.append(network.readout)
        active = [True, True, False, False]
    else:
        linears = [network.first, *list(network.rest)[1::2]]
        active = [True] * (len(linears) - 1) + [False]
    for linear in linears:
        parts += _linear(linear)
    chosen = network.chosen if isinstance(network, BodyMLP) else None
    source, weights = _source_and_weights(policy, chosen, parts)
    widths = [[linear.out_features, on] for linear, on in zip(linears, active, strict=True)]
    layers = np.array(widths, np.int64)
    sizes = (network.memory.numbers, int(v), int(e))
    constants = (_waves(network.memory), nodes, gelu, layers, sizes)
    state = _memory_state(network, robots)
    return StepProgram(dense_step, source, weights, constants, state, network.memory.steps)


def _causal(
    policy: PolicyNetwork, network: CausalNetwork, trunk: CausalTrunk, robots: int
) -> StepProgram:
    if isinstance(network, DecisionTransformer):
        widths = network.widths
        embeddings = [network.embed_action, network.embed_return, network.embed_state]
    else:
        widths = (policy.layout.dim,)
        embeddings = [network.get_submodule("encoder")]
    norm = network.get_submodule("embedding_norm")
    has_norm = isinstance(norm, nn.LayerNorm)
    parts = list[Tensor]()
    for embedding in embeddings:
        parts += _linear(embedding)
        parts += [norm.weight, norm.bias] if has_norm else []
    for block in trunk.blocks:
        parts += [block.attention_norm.weight, block.attention_norm.bias]
        parts += [*_linear(block.qkv), *_linear(block.out)]
        parts += [block.feedforward_norm.weight, block.feedforward_norm.bias]
        parts += [*_linear(block.widen), *_linear(block.narrow)]
    parts += [trunk.last_norm.weight, trunk.last_norm.bias, *_linear(network.decoder)]
    source, weights = _source_and_weights(policy, None, parts)
    w = trunk.head_dim
    slots = trunk.context_len * trunk.tokens_per_step
    frequencies = trunk.frequencies(torch.device("cpu"))
    frequencies = frequencies[len(frequencies) // 2 :].numpy().copy()
    bounds = np.cumsum([0, *widths])
    constants = gelu_polynomial(), bounds, frequencies, has_norm
    shape = robots, len(trunk.blocks), trunk.last_norm.weight.numel() // w
    state = (
        np.zeros((*shape, w, slots), np.float32),
        np.zeros((*shape, slots, w), np.float32),
        np.zeros(robots, np.int64),
    )
    # The slot is a clock. It starts again after some decades, once for n steps with wrong lags.
    return StepProgram(
        transformer_step, source, weights, constants, state, trunk.context_len * 10**9
    )


def _waves(memory: StackedMemory | SpectralMemory) -> tuple[np.ndarray, np.ndarray]:
    """The tables of a spectral memory; empty ones of a stacked one."""
    if isinstance(memory, SpectralMemory):
        return memory.enter.numpy().copy(), memory.rotation.numpy().copy()
    return np.empty((0, 0)), np.empty((0, 0, 0))


def _memory_state(network: HistoryNetwork, robots: int) -> tuple[np.ndarray, np.ndarray]:
    """Last tokens and modes of a number of robots, before their first step."""
    memory = network.memory
    width = network.width
    modes = 2 * memory.n_modes - 1 if isinstance(memory, SpectralMemory) else 0
    ring = np.zeros((robots, memory.steps, width), np.float32)
    return ring, np.zeros((robots, modes, width))


def _source_and_weights(
    policy: PolicyNetwork, channels: Tensor | None, parts: list[Tensor]
) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
    """`source` of the kernels, and all weights in the order in which they are read.

    The observation's mean, std and bound by token index, the network's parts, the action's mean and
    std.
    """
    source = _token_source(policy.layout)
    if channels is not None:
        source = source[channels.numpy()]
    seen = source.clip(min=0)
    obs = policy.obs_normaliser
    action = policy.action_normaliser
    inputs = [values[seen] for values in (obs.mean, obs.std, obs.limits())]
    parts = [*inputs, *parts, action.mean, action.std]
    return source, tuple(part.detach().numpy().astype(np.float32, order="C") for part in parts)


def _token_source(layout: TokenLayout) -> np.ndarray:
    """(D,) the observation index of each token index; -1, -2, ... for the condition's numbers."""
    source = np.empty(layout.dim, np.int64)
    for name, (start, stop) in layout.slices.items():
        if name == CONDITION:
            source[start:stop] = -1 - np.arange(stop - start)
        else:
            source[start:stop] = np.arange(*layout.obs_slices[name])
    return source


def _linear(layer: nn.Module) -> list[Tensor]:
    """Weight (inputs, outputs) and bias."""
    assert isinstance(layer, nn.Linear)
    return [layer.weight.T, layer.bias]


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
        labels = network.condition.labels if network.conditioned else ()
        if TARGET not in asked and (lacking := [name for name in labels if name not in asked]):
            raise ValueError(f"return_target needs a target for {listed(lacking)}, too")
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
