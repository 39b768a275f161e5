"""The control step of an FCNet for one robot on one CPU thread, compiled with numba."""

import numpy as np
import torch
from torch import Tensor, nn

from learners.deploy.compiled_kernels import control_step, gelu_polynomial
from learners.models.fcnet.fcnet import FCNet
from learners.models.fcnet.spectral_basis import dft_angles
from learners.policy.policy_network import PolicyNetwork
from learners.policy.tokens import TokenLayout


class CompiledFCNet:
    """A trained FCNet policy with a copy of its weights, equal to `PolicyNetwork.step`.

    In a control loop:

        policy = CompiledFCNet(network)
        policy.reset()
        while running:
            joint_targets = policy.step(read_observation())

    A return-conditioned policy also takes the return-to-go in units of the stored reward: start at
    target * return_scale (target 1.0 = the expert's return) and subtract every reward. If the last
    action is not observed, it is kept here.
    """

    def __init__(self, policy: PolicyNetwork) -> None:
        """Compile, which takes seconds the first time; later the code comes from the disk.

        Raises ValueError if the policy is no FCNet.
        """
        network = policy.network
        if not isinstance(network, FCNet):
            raise ValueError(
                f"only a policy of kind FCNet can be compiled, not a {type(network).__name__}"
            )
        config = network.config
        self.obs_dim = policy.layout.stored_dim
        self.conditioned = policy.conditioned
        self.return_scale = float(policy.return_scale)
        self._context_len = config.context_len
        self._slot = 0
        self._obs = np.zeros(policy.layout.obs_dim, np.float32)
        self._action = np.zeros(policy.act_dim, np.float32)
        d, h, layers = config.hidden_dim, config.decoder_dim, config.n_layers
        angles = dft_angles(config.n_modes, 2, config.context_len)[:, 1]
        turn = _numbers(torch.stack([angles.cos(), angles.sin()]))
        self._ring = np.zeros((config.context_len, layers, d), np.float32)
        self._modes = np.zeros((layers, 2, 2 * config.n_modes, d), np.float32)
        weights, scratch = _weights(policy, network), max(policy.layout.dim, d, h)
        self._arguments = (
            (_token_source(policy.layout), weights, turn, gelu_polynomial()),
            (self._ring, self._modes, np.zeros((6, scratch), np.float32)),
            h,
        )
        self._advance(0.0)
        self.reset()

    def reset(self) -> None:
        """Start a new episode."""
        self._ring[:] = 0.0
        self._modes[:] = 0.0
        self._obs[self.obs_dim :] = 0.0
        self._slot = 0

    def step(self, obs: np.ndarray, return_to_go: float | None = None) -> np.ndarray:
        """One control step: obs (Do,) -> a new action (A,) float32, in the units of the data.

        Raises ValueError for another shape, or a missing return_to_go.
        """
        if obs.shape != (self.obs_dim,):
            raise ValueError(f"an observation has shape ({self.obs_dim},), got {obs.shape}")
        if self.conditioned and return_to_go is None:
            raise ValueError("this policy is conditioned on the return; give return_to_go")
        self._obs[: self.obs_dim] = obs
        self._advance(0.0 if return_to_go is None else return_to_go / self.return_scale)
        if self.obs_dim < self._obs.size:
            self._obs[self.obs_dim :] = self._action
        return self._action.copy()

    def _advance(self, remaining: float) -> None:
        control_step(self._obs, remaining, *self._arguments, self._slot, self._action)
        self._slot = (self._slot + 1) % self._context_len


def _numbers(values: Tensor) -> np.ndarray:
    """A contiguous float32 copy."""
    return values.detach().cpu().numpy().astype(np.float32, order="C")


def _token_source(layout: TokenLayout) -> np.ndarray:
    """(D,) the observation index of each token index, -1 for the return-to-go."""
    source = np.full(layout.dim, -1)
    for name, (start, stop) in layout.slices.items():
        if name in layout.obs_slices:
            source[start:stop] = np.arange(*layout.obs_slices[name])
    return source


def _weights(policy: PolicyNetwork, network: FCNet) -> np.ndarray:
    """All weights in the order in which `control_step` reads them."""
    seen = _token_source(policy.layout).clip(min=0)
    parts = [policy.obs_normaliser.mean[seen], policy.obs_normaliser.std[seen]]
    parts += _linear(network.encoder)
    for layer in network.layers:
        parts += [layer.spectral_norm.weight, layer.spectral_norm.bias]
        parts += [layer.spectral.init_state(1).readout]
        parts += [layer.ffn_norm.weight, layer.ffn_norm.bias]
        parts += [*_linear(layer.ffn[0]), *_linear(layer.ffn[2])]
    parts += [*_linear(network.decoder[0]), *_linear(network.decoder[2])]
    parts += [policy.action_normaliser.mean, policy.action_normaliser.std]
    return np.concatenate([_numbers(part).ravel() for part in parts])


def _linear(layer: nn.Module) -> tuple[Tensor, Tensor]:
    """Weight (inputs, outputs) and bias."""
    assert isinstance(layer, nn.Linear)
    return layer.weight.T, layer.bias
