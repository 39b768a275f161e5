"""A policy: a network with its token layout and normalisers."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from gaitforge.learners.policy.conditioning import Condition
from gaitforge.learners.policy.gaussian import GaussianSpread
from gaitforge.learners.policy.label_scale import LabelScale
from gaitforge.learners.policy.normalisation import Normaliser
from gaitforge.learners.policy.tokens import BODY, BODY_SIGN, CONDITION, LAST_ACTION, TokenLayout


class PolicyNetwork(nn.Module):
    """Maps observations to actions, both in the units of the data.

    The network works in normalised units. A conditioned one also sees labels, see `Condition`; a
    return R as its share (R - `return_zero`) / `return_scale` of the expert's.

    Observations (..., Do) have the fields of the layout. If the layout has fields of the body, or
    keeps the last action, they are appended to the stored observation (..., Ds), see `observation`.
    Where the layout has signed fields, the network reads and writes all joints as turning about +x
    and +y: observations and actions outside it have each robot's own signs.

    With `gaussian` the policy is a Gaussian with the network's output as mean; `forward` and `step`
    return the mean.
    """

    network: Any
    return_scale: Tensor
    return_zero: Tensor
    body: Tensor
    sign_places: Tensor
    action_filter = 1.0
    """See `filtered`."""
    label_scale: LabelScale | None = None
    """What the labels were measured by in training; None if it is not conditioned, or older."""

    def __init__(
        self,
        network: nn.Module,
        layout: TokenLayout,
        obs_normaliser: Normaliser,
        action_normaliser: Normaliser,
        return_scale: float = 1.0,
        gaussian: GaussianSpread | None = None,
        return_zero: float = 0.0,
        condition: Condition | None = None,
    ) -> None:
        super().__init__()
        self.network = network
        self.layout = layout
        self.condition = condition or Condition()
        self.obs_normaliser = obs_normaliser
        self.action_normaliser = action_normaliser
        self.gaussian = gaussian
        self.register_buffer("return_scale", torch.tensor(return_scale, dtype=torch.float32))
        zero = torch.tensor(return_zero, dtype=torch.float32)
        self.register_buffer("return_zero", zero, persistent=False)  # in the card
        self.register_buffer("body", torch.full((layout.body_dim,), torch.nan), persistent=False)
        self.register_buffer("sign_places", torch.tensor(layout.sign_places), persistent=False)

    @property
    def conditioned(self) -> bool:
        """Whether the policy takes a condition."""
        return self.layout.kind == "return"

    def return_at(self, share: float) -> float:
        """The return that the network sees as `share`; a share of 1.0 is the expert's return."""
        return float(self.return_zero) + share * float(self.return_scale)

    @property
    def act_dim(self) -> int:
        """Size of an action."""
        return self.action_normaliser.mean.numel()

    @property
    def log_std(self) -> Tensor:
        """(A,) in normalised action units; ValueError for a deterministic policy."""
        if self.gaussian is None:
            raise ValueError(
                "this policy is deterministic and cannot be sampled; "
                "train one with the objective gaussian-bc"
            )
        return self.gaussian.log_std()

    def action_std(self) -> Tensor:
        """(A,) in the units of the data; ValueError for a deterministic policy."""
        return self.log_std.exp() * self.action_normaliser.std

    def drive(self, body: np.ndarray) -> None:
        """Set the body (layout.body_dim,) of every robot, until the next call.

        ValueError for a body of another size.
        """
        if body.shape != self.body.shape:
            raise ValueError(
                f"the policy reads bodies of {self.body.numel()} numbers, not {body.size}"
            )
        self.body.copy_(torch.from_numpy(body))

    def filtered(self, share: float) -> "PolicyNetwork":
        """Put a first-order low-pass filter behind the network; returns the policy.

        An action is then the last one, as the observation holds it, plus `share` times the
        difference to the network's; 1.0 is no filter. Raises ValueError for a share outside (0, 1],
        or if the observation has no last action.
        """
        if not 0.0 < share <= 1.0:
            raise ValueError(f"the filter's share must be above 0 and at most 1, got {share}")
        if share < 1.0 and LAST_ACTION not in self.layout.obs_slices:
            raise ValueError(f"a filter of actions needs an observation field named {LAST_ACTION}")
        self.action_filter = share
        return self

    def observation(
        self, stored: Tensor, last_action: Tensor | None = None, body: Tensor | None = None
    ) -> Tensor:
        """Stored (..., Ds) -> (..., Do).

        Args:
            last_action: (..., A), needed if the layout keeps it.
            body: (..., layout.body_dim); by default the one that `drive` set.
        """
        parts = [stored]
        if self.layout.body_fields:
            body = self.body if body is None else body
            parts.append(body.expand(*stored.shape[:-1], -1))
        if self.layout.keeps_last_action:
            if last_action is None:
                raise ValueError("the stored observation has no last action; give last_action")
            parts.append(last_action)
        return torch.cat(parts, dim=-1) if len(parts) > 1 else stored

    def batch_tokens(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Tokens (B, T, D) of a batch of windows.

        The batch has obs (B, T, Ds) and, if the policy takes them, condition (B, T, C),
        last_action (B, T, A) and body (B, D). Where `shown` (B, T) is false tokens are zeros, and
        where `action_shown` (B,) is false the last action is.
        """
        body = batch[BODY][:, None] if self.layout.body_fields else None
        obs = self.observation(batch["obs"], batch.get(LAST_ACTION), body)
        tokens = self.tokens(obs, batch.get(CONDITION))
        if "shown" in batch:
            tokens = tokens * batch["shown"][..., None]
        if "action_shown" in batch and LAST_ACTION in self.layout.slices:
            kept = torch.ones(len(tokens), 1, tokens.shape[-1], device=tokens.device)
            kept[..., slice(*self.layout.slices[LAST_ACTION])] = batch["action_shown"][
                :, None, None
            ]
            tokens = tokens * kept
        return tokens

    def batch_actions(self, batch: Mapping[str, Tensor], name: str = "action") -> Tensor:
        """A batch's actions (B, T, A) as the network gives them, normalised.

        The batch has `name` (B, T, A) and, if the policy takes it, body (B, D).
        """
        actions = batch[name]
        if self.layout.signed_fields:
            actions = actions * batch[BODY][:, None, self.layout.body_signs]
        return self.action_normaliser.normalise(actions)

    def predict_batch(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Normalised actions (B, T, A) for a batch of windows, for the loss.

        The batch has mask (B, T), and the inputs of `batch_tokens`. Actions are undefined where the
        mask is false: a network that `takes_mask` does not compute them.
        """
        tokens = self.batch_tokens(batch)
        if getattr(self.network, "takes_mask", False):
            return self.network(tokens, batch["mask"])
        return self.network(tokens)

    def share(self, returns: Any) -> Any:
        """The network's share of returns, an array or tensor of any shape; see `return_at`."""
        if isinstance(returns, Tensor):
            return (returns - self.return_zero) / self.return_scale
        return (returns - float(self.return_zero)) / float(self.return_scale)

    def tokens(self, obs: Tensor, condition: Tensor | None = None) -> Tensor:
        """(..., Do) and, for return tokens, condition (..., C) -> normalised tokens (..., D)."""
        if self.layout.signed_fields:
            signs = functional.pad(obs, (0, 1), value=1.0).index_select(-1, self.sign_places)
            obs = obs * signs
        normalised = self.obs_normaliser.normalise(obs)
        if not self.conditioned:
            return normalised
        if condition is None:
            raise ValueError("this policy is conditioned on the return; give the condition")
        start, stop = self.layout.obs_slices[LAST_ACTION]
        before = normalised[..., :start]
        last_action = normalised[..., start:stop]
        return torch.cat([last_action, condition, before, normalised[..., stop:]], dim=-1)

    def predict_normalised(self, obs: Tensor, condition: Tensor | None = None) -> Tensor:
        """(B, T, Do) [and condition (B, T, C)] -> normalised actions (B, T, A)."""
        return self.network(self.tokens(obs, condition))

    def forward(self, obs: Tensor, condition: Tensor | None = None) -> Tensor:
        """(B, T, Do) [and condition (B, T, C)] -> actions (B, T, A) in the units of the data."""
        return self.restored(self.predict_normalised(obs, condition), obs)

    def restored(self, normalised: Tensor, obs: Tensor) -> Tensor:
        """The network's actions (..., A) at obs (..., Do), filtered, in the units of the data."""
        action = self.action_normaliser.restore(normalised)
        if self.layout.signed_fields:
            action = action * obs[..., slice(*self.layout.obs_slices[BODY_SIGN])]
        if self.action_filter == 1.0:
            return action
        last = obs[..., slice(*self.layout.obs_slices[LAST_ACTION])]
        return last + self.action_filter * (action - last)

    def init_state(self, batch_size: int) -> Any:
        """Recurrent state of `batch_size` robots before their first step."""
        return self.network.init_state(batch_size)

    def step(self, obs: Tensor, state: Any, condition: Tensor | None = None) -> tuple[Tensor, Any]:
        """One control step: obs (B, Do) [and condition (B, C)] -> action (B, A), next state."""
        action, state = self.network.step(self.tokens(obs, condition), state)
        return self.restored(action, obs), state

    def reset_state(self, state: Any, rows: Tensor) -> None:
        """Reset the state of the robots `rows` (indices), in place."""
        self.network.reset_state(state, rows)
