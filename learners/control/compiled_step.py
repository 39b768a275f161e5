"""The control step of most networks on one CPU thread, compiled with numba."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

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
from gaitforge.learners.models.transformer import (
    CausalNetwork,
    CausalTrunk,
    DecisionTransformer,
    rotary_frequencies,
)
from gaitforge.learners.policy_network import PolicyNetwork
from gaitforge.learners.tokens import BODY_SIGN, CONDITION, LAST_ACTION, TokenLayout


class CompiledStep:
    """`PolicyNetwork.step` of N robots, with a copy of the weights and the robots' state.

    kernel, network: a function of `compiled_kernels` and its constants. state: arrays (N, ...),
    zeros at an episode's start. period: steps after which the state's slots repeat.
    """

    def __init__(
        self,
        policy: PolicyNetwork,
        kernel: Callable[..., None],
        network: tuple[Any, ...],
        state: tuple[np.ndarray, ...],
        period: int,
    ) -> None:
        """Compile, which takes seconds the first time; later the code is read from disk."""
        self._kernel = kernel
        self._network = network
        self._state = state
        self._period = period
        self._slot = 0
        robots = len(state[0])
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
    """The compiled step of a float32 policy on the CPU; None for kinds that have none.

    FCNet, the Transformers and the MLPs have one, and BoT unless its masking is "soft".
    """
    network = policy.network
    if isinstance(network, BoundedNetwork):
        network = network.network
    if isinstance(network, FCNet):
        return _fcnet(policy, network, num_robots)
    if isinstance(network, BoT) and network.hop_bias is None:
        return _bot(policy, network, num_robots)
    if isinstance(network, HistoryMLP | BodyMLP):
        return _dense(policy, network, num_robots)
    if isinstance(network, CausalNetwork) and isinstance(network.trunk, CausalTrunk):
        return _causal(policy, network, network.trunk, num_robots)
    return None


def _fcnet(policy: PolicyNetwork, network: FCNet, robots: int) -> CompiledStep:
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
    constants = (source, weights, turn, gelu_polynomial(), h)
    return CompiledStep(policy, fcnet_step, constants, state, n)


def _bot(policy: PolicyNetwork, network: BoT, robots: int) -> CompiledStep:
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
    constants = (
        source,
        weights,
        _waves(network.memory),
        node_of_index(graph.observations).numpy(),
        node_of_index(graph.actions).numpy(),
        starts,
        columns,
        (e, config.n_heads, config.feedforward_dim, network.memory.numbers),
    )
    state = _memory_state(network, robots)
    return CompiledStep(policy, bot_step, constants, state, network.memory.steps)


def _dense(policy: PolicyNetwork, network: HistoryMLP | BodyMLP, robots: int) -> CompiledStep:
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
    constants = (source, weights, _waves(network.memory), nodes, gelu, layers, sizes)
    state = _memory_state(network, robots)
    return CompiledStep(policy, dense_step, constants, state, network.memory.steps)


def _causal(
    policy: PolicyNetwork, network: CausalNetwork, trunk: CausalTrunk, robots: int
) -> CompiledStep:
    widths = (policy.layout.dim,)
    parts = list[Tensor]()
    if isinstance(network, DecisionTransformer):
        widths = network.widths
        norm = network.embedding_norm
        for linear in (network.embed_action, network.embed_return, network.embed_state):
            parts += [*_linear(linear), norm.weight, norm.bias]
    else:
        parts += _linear(network.get_submodule("encoder"))
    for block in trunk.blocks:
        parts += [block.attention_norm.weight, block.attention_norm.bias]
        parts += [*_linear(block.qkv), *_linear(block.out)]
        parts += [block.feedforward_norm.weight, block.feedforward_norm.bias]
        parts += [*_linear(block.widen), *_linear(block.narrow)]
    parts += [trunk.last_norm.weight, trunk.last_norm.bias, *_linear(network.decoder)]
    source, weights = _source_and_weights(policy, None, parts)
    w = trunk.head_dim
    slots = trunk.context_len * trunk.tokens_per_step
    frequencies = rotary_frequencies(w, torch.device("cpu"))[w // 2 :].numpy().copy()
    constants = source, weights, gelu_polynomial(), np.cumsum([0, *widths]), frequencies
    shape = robots, len(trunk.blocks), trunk.last_norm.weight.numel() // w
    state = (
        np.zeros((*shape, w, slots), np.float32),
        np.zeros((*shape, slots, w), np.float32),
        np.zeros(robots, np.int64),
    )
    # The slot is a clock. It starts again after some decades, once for n steps with wrong lags.
    return CompiledStep(policy, transformer_step, constants, state, trunk.context_len * 10**9)


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
) -> tuple[np.ndarray, np.ndarray]:
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
    numbers = [part.detach().numpy().astype(np.float32, order="C").ravel() for part in parts]
    return source, np.concatenate(numbers)


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
