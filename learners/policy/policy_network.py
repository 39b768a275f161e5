"""A network with everything it needs to go from stored observations to physical actions."""

from collections.abc import Mapping
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn

from learners.policy.gaussian import GaussianSpread
from learners.policy.normalisation import Normaliser
from learners.policy.tokens import LAST_ACTION, TokenLayout


class Network(Protocol):
    """What every model offers: tokens (B, T, D) -> actions (B, T, A), and the same step by step."""

    def __call__(self, tokens: Tensor) -> Tensor: ...

    def init_state(self, batch_size: int) -> Any: ...

    def step(self, token: Tensor, state: Any) -> tuple[Tensor, Any]: ...

    def reset_state(self, state: Any, rows: Tensor) -> None: ...


class PolicyNetwork(nn.Module):
    """Token builder, normalisers and network in one module; its state dict is the whole policy.

    The network works in normalised units on both sides. Return-to-go is given in units of the
    stored reward and divided by `return_scale`, the mean return of a whole expert episode, so that
    the network sees 1.0 at the start of an average expert episode.

    An observation here is the layout's: where the policy keeps the last action, the stored
    observation with the last action appended (`observation`).

    With `gaussian` the policy is a Gaussian around the network's output, which stays the action of
    `forward` and `step`; without, it is that action.
    """

    return_scale: Tensor

    def __init__(
        self,
        network: nn.Module,
        layout: TokenLayout,
        obs_normaliser: Normaliser,
        action_normaliser: Normaliser,
        return_scale: float = 1.0,
        gaussian: GaussianSpread | None = None,
    ) -> None:
        super().__init__()
        self.network = network
        self.layout = layout
        self.obs_normaliser = obs_normaliser
        self.action_normaliser = action_normaliser
        self.gaussian = gaussian
        self.register_buffer("return_scale", torch.tensor(return_scale, dtype=torch.float32))

    @property
    def conditioned(self) -> bool:
        """Whether the policy takes a return-to-go."""
        return self.layout.kind == "return"

    @property
    def log_std(self) -> Tensor:
        """(A,) of a Gaussian policy, in normalised units; ValueError for a deterministic one."""
        if self.gaussian is None:
            raise ValueError(
                "this policy is deterministic: it has no distribution to sample from; "
                "train one with the objective gaussian-bc"
            )
        return self.gaussian.log_std()

    def action_std(self) -> Tensor:
        """(A,) of a Gaussian policy, in the units of the data; ValueError as `log_std`."""
        return self.log_std.exp() * self.action_normaliser.std

    def observation(self, stored: Tensor, last_action: Tensor | None = None) -> Tensor:
        """What the policy reads: stored (..., Ds) and, where it keeps it, last_action (..., A)."""
        if not self.layout.keeps_last_action:
            return stored
        if last_action is None:
            raise ValueError("the data's observation has no last action: give last_action")
        return torch.cat([stored, last_action], dim=-1)

    def predict_batch(self, batch: Mapping[str, Tensor]) -> Tensor:
        """`predict_normalised` of a batch of stored steps.

        Args:
            batch: obs (B, T, Ds), return_to_go (B, T) where the policy is conditioned on it, and
                last_action (B, T, A) where it keeps that itself.
        """
        obs = self.observation(batch["obs"], batch.get(LAST_ACTION))
        return self.predict_normalised(obs, batch.get("return_to_go"))

    def tokens(self, obs: Tensor, return_to_go: Tensor | None = None) -> Tensor:
        """obs (..., Do) and, for return tokens, return_to_go (...) -> normalised (..., D)."""
        normalised = self.obs_normaliser.normalise(obs)
        if not self.conditioned:
            return normalised
        if return_to_go is None:
            raise ValueError("this policy is conditioned on the return: give return_to_go")
        start, stop = self.layout.obs_slices[LAST_ACTION]
        remaining = (return_to_go / self.return_scale)[..., None]
        return torch.cat(
            [
                normalised[..., start:stop],
                remaining,
                normalised[..., :start],
                normalised[..., stop:],
            ],
            dim=-1,
        )

    def predict_normalised(self, obs: Tensor, return_to_go: Tensor | None = None) -> Tensor:
        """(B, T, Do) [and (B, T)] -> normalised actions (B, T, A), the units of the loss."""
        return self.network(self.tokens(obs, return_to_go))

    def forward(self, obs: Tensor, return_to_go: Tensor | None = None) -> Tensor:
        """(B, T, Do) [and return_to_go (B, T)] -> actions (B, T, A) in the units of the data."""
        return self.action_normaliser.restore(self.predict_normalised(obs, return_to_go))

    def init_state(self, batch_size: int) -> Any:
        """Recurrent state of `batch_size` robots before their first step."""
        return self._recurrent.init_state(batch_size)

    def step(
        self, obs: Tensor, state: Any, return_to_go: Tensor | None = None
    ) -> tuple[Tensor, Any]:
        """One control step: obs (B, Do) [and return_to_go (B,)] -> action (B, A), next state."""
        action, state = self._recurrent.step(self.tokens(obs, return_to_go), state)
        return self.action_normaliser.restore(action), state

    def reset_state(self, state: Any, rows: Tensor) -> None:
        """Forget the history of the robots `rows` (indices), in place."""
        self._recurrent.reset_state(state, rows)

    @property
    def _recurrent(self) -> Network:
        return cast(Network, self.network)
