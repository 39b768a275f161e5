"""A policy's control step as a pure function of tensors, for export.

`PolicyNetwork.step` may update any dataclass in place. Here the state is a flat list of named
tensors that every step takes and returns.

Legend: B batch (robots), Do observation, D token, A action.
"""

from typing import Any

import torch
from torch import Tensor, nn

from gaitforge.learners.control.fcnet_step import FCNetStep
from gaitforge.learners.control.step_state import StateTensor, named_tensors, with_tensors
from gaitforge.learners.models.bounded import BoundedNetwork
from gaitforge.learners.models.fcnet.fcnet import FCNet
from gaitforge.learners.policy.conditioning import RETURN_TO_GO
from gaitforge.learners.policy.policy_network import PolicyNetwork
from gaitforge.learners.policy.tokens import LAST_ACTION

KEPT_ACTION = f"state_{LAST_ACTION}"
"""Name of the last action in the state, if the policy keeps it."""


class NetworkStep(nn.Module):
    """The pure step of any network whose state consists of tensors.

    Tensors of the state that a step leaves unchanged are constants of the module.
    """

    network: Any

    def __init__(self, network: nn.Module, token_dim: int, batch_size: int) -> None:
        """Raises ValueError if the state holds anything but tensors."""
        super().__init__()
        self.network = network
        self._initial = self.network.init_state(batch_size)
        leaves = dict(named_tensors(self._initial))
        wider = dict(named_tensors(self.network.init_state(batch_size + 1)))
        self.state_tensors = tuple(
            StateTensor(name, leaves[name], _differing_axis(leaves[name], wider[name]))
            for name in self._changing(leaves, torch.zeros(batch_size, token_dim))
        )

    def _changing(self, leaves: dict[str, Tensor], token: Tensor) -> list[str]:
        """Names of the tensors that a step replaces or writes to."""
        copies = {name: value.clone() for name, value in leaves.items()}
        versions = {name: value._version for name, value in copies.items()}
        _, state = self.network.step(token, with_tensors(self._initial, copies))
        returned = dict(named_tensors(state))
        untouched = {
            name
            for name, value in copies.items()
            if returned[name] is value and value._version == versions[name]
        }
        return [name for name, value in leaves.items() if value.numel() and name not in untouched]

    def forward(self, token: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        """A token (B, D) and the state tensors -> action (B, A) and their next values."""
        names = [tensor.name for tensor in self.state_tensors]
        copies = {name: value.clone() for name, value in zip(names, state, strict=True)}
        action, following = self.network.step(token, with_tensors(self._initial, copies))
        tensors = dict(named_tensors(following))
        return action, *(tensors[name] for name in names)


class BoundedStep(nn.Module):
    """The step of a `BoundedNetwork`: the tanh of another step's action."""

    def __init__(self, step: FCNetStep | NetworkStep) -> None:
        super().__init__()
        self.step = step
        self.state_tensors = step.state_tensors

    def forward(self, token: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        """See the wrapped step."""
        action, *following = self.step(token, *state)
        return action.tanh(), *following


def _network_step(
    network: nn.Module, token_dim: int, batch_size: int
) -> FCNetStep | NetworkStep | BoundedStep:
    if isinstance(network, BoundedNetwork):
        inner = _network_step(network.network, token_dim, batch_size)
        assert not isinstance(inner, BoundedStep), "bounds are not nested"
        return BoundedStep(inner)
    if isinstance(network, FCNet):
        return FCNetStep(network, batch_size)
    return NetworkStep(network, token_dim, batch_size)


class PolicyStep(nn.Module):
    """observation (B, Do), [return_to_go (B,), target (B,),] state -> action (B, A), next state.

    Observations, return-to-go and actions are in the units of the data; the target is a share of
    the expert's return, see `Condition`. The output `next_X` of one step is the input `X` of the
    next. If the policy keeps the last action, it is part of the state.
    """

    def __init__(self, policy: PolicyNetwork, batch_size: int = 1) -> None:
        """Raises ValueError for batch_size < 1 or a state that does not consist of tensors."""
        super().__init__()
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        self.batch_size = batch_size
        self.obs_dim = policy.layout.stored_dim
        self.act_dim = policy.act_dim
        with torch.no_grad():
            step = _network_step(policy.network, policy.layout.dim, batch_size)
        self.policy = PolicyNetwork(
            step,
            policy.layout,
            policy.obs_normaliser,
            policy.action_normaliser,
            float(policy.return_scale),
            return_zero=float(policy.return_zero),
            condition=policy.condition,
        ).filtered(policy.action_filter)
        self.targets = policy.condition.inputs if policy.conditioned else ()
        self.policy.body.copy_(policy.body)
        kept = StateTensor(KEPT_ACTION, torch.zeros(batch_size, self.act_dim), batch_axis=0)
        self._kept = (kept,) if policy.layout.keeps_last_action else ()
        self.state_tensors: tuple[StateTensor, ...] = (*self._kept, *step.state_tensors)
        self.eval()

    @property
    def input_names(self) -> list[str]:
        """Names of `forward`'s arguments, in order."""
        return ["observation", *self.targets, *(tensor.name for tensor in self.state_tensors)]

    @property
    def output_names(self) -> list[str]:
        """Names of `forward`'s results, in order."""
        return ["action", *(f"next_{tensor.name}" for tensor in self.state_tensors)]

    def initial_state(self) -> tuple[Tensor, ...]:
        """Copies of the state before an episode."""
        return tuple(tensor.initial.clone() for tensor in self.state_tensors)

    def example_inputs(self) -> tuple[Tensor, ...]:
        """Zeros and the initial state, for tracing."""
        targets = (torch.zeros(self.batch_size) for _ in self.targets)
        return torch.zeros(self.batch_size, self.obs_dim), *targets, *self.initial_state()

    def forward(self, observation: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        """See the class."""
        inputs = dict(zip(self.input_names[1:], rest, strict=True))
        obs = self.policy.observation(observation, inputs.pop(KEPT_ACTION, None))
        token = self.policy.tokens(obs, self._condition({n: inputs.pop(n) for n in self.targets}))
        action, *state = self.policy.network(token, *inputs.values())
        action = self.policy.restored(action, obs)
        return action, *(action.clone() for _ in self._kept), *state

    def _condition(self, targets: dict[str, Tensor]) -> Tensor | None:
        if not targets:
            return None
        if RETURN_TO_GO in targets:
            targets[RETURN_TO_GO] = self.policy.share(targets[RETURN_TO_GO])
        return torch.stack(self.policy.condition.in_control(targets), dim=-1)


def _differing_axis(narrow: Tensor, wide: Tensor) -> int | None:
    """The axis that differs, if any."""
    pairs = zip(narrow.shape, wide.shape, strict=True)
    return next((axis for axis, (a, b) in enumerate(pairs) if a != b), None)
