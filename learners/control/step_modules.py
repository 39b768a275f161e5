"""A policy's control step as a pure function of tensors, for export.

`PolicyNetwork.step` may update any dataclass in place. Here the recurrent state is a flat list of
named tensors that every step takes and returns.

`FCNetStep` is FCNet's control step in few, large tensor operations, for runtimes with a cost per
operation; its results are those of `FCNet.step`. Let Z_k be the sum over the window of
x_tau u_k^(-tau), u_k = exp(2 pi i k / n): the modes of Eq. (13) without their common phase,
X_k(t) = u_k^(t+1) Z_k. Then

- what enters or leaves the window in slot s = t mod n is multiplied by the same u_k^(-s): the modes
  are never rotated, and exactly the number that was added is later subtracted;
- the past's contribution to a layer, Re sum_k r_k X_k, does not depend on the present input, so one
  product gives it for all layers; the present input adds h[0] x (lag 0 of the kernel);
- the sums in `window` leave out the slot that the next step overwrites;
- the last layer's second linear map and the decoder's first are folded into one.

The rounding errors of these sums grow without bound. In float64 they are about 1e-16 of the sum a
step, at random: some 1e-11 after a year at 50 Hz, below float32's own.

Legend: B batch (robots), Do observation, D token, A action, n context length, m modes,
C = layers x hidden channels.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from gaitforge.learners.models.base import BoundedNetwork
from gaitforge.learners.models.fcnet import FCNet, FourierLayer, dft_angles
from gaitforge.learners.policy_network import PolicyNetwork
from gaitforge.learners.tokens import LAST_ACTION, RETURN_TO_GO


# Recurrent state: a flat list of named tensors.
@dataclass(frozen=True)
class StateTensor:
    """One tensor of the recurrent state.

    initial: its value before the first step. batch_axis: the axis of the robots, each with as many
    adjacent entries; None for shared state such as a clock. in_place: a runtime may overwrite it
    with the next value.
    """

    name: str
    initial: Tensor
    batch_axis: int | None
    in_place: bool = False


def named_tensors(state: Any, name: str = "state") -> Iterator[tuple[str, Tensor]]:
    """The tensors in a tree of dataclasses, lists, tuples and dicts, by path; else ValueError."""
    if isinstance(state, Tensor):
        yield name, state
        return
    for key, part in _parts(state, name):
        yield from named_tensors(part, f"{name}_{key}")


def with_tensors(state: Any, tensors: Mapping[str, Tensor], name: str = "state") -> Any:
    """The same tree with the tensors at these paths replaced."""
    if isinstance(state, Tensor):
        return tensors.get(name, state)
    parts = {key: with_tensors(part, tensors, f"{name}_{key}") for key, part in _parts(state, name)}
    if isinstance(state, Mapping):
        return parts
    if isinstance(state, list | tuple):
        return type(state)(parts.values())
    return replace(state, **parts)


def _parts(state: Any, name: str) -> list[tuple[str, Any]]:
    if is_dataclass(state) and not isinstance(state, type):
        return [(field.name, getattr(state, field.name)) for field in fields(state)]
    if isinstance(state, Mapping):
        return [(str(key), part) for key, part in state.items()]
    if isinstance(state, list | tuple):
        return [(str(index), part) for index, part in enumerate(state)]
    raise ValueError(
        f"{name} of the network is of type {type(state).__name__}; only tensors can be exported"
    )


# FCNet's step: few, large tensor operations.
class FourierStep(nn.Module):
    """One Fourier layer up to its FFN's second map; takes the contribution of past inputs."""

    present: Tensor

    def __init__(self, layer: FourierLayer) -> None:
        super().__init__()
        self.spectral_norm = layer.spectral_norm
        self.ffn_norm = layer.ffn_norm
        self.widen, self.activation, self.narrow = layer.ffn
        self.register_buffer("present", layer.spectral.kernel()[0].detach().clone())

    def forward(self, x: Tensor, past: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Take x and past (B, d) to the convolution's input, y, the FFN's hidden activations."""
        entered = self.spectral_norm(x)
        y = functional.gelu(past + self.present * entered) + x
        return entered, y, self.activation(self.widen(self.ffn_norm(y)))


class DecoderStep(nn.Module):
    """The decoder of y + W2 inside, with its first map D folded: D y + (D W2) inside."""

    def __init__(self, narrow: nn.Linear, decoder: nn.Sequential) -> None:
        super().__init__()
        first, self.activation, self.last = decoder
        assert isinstance(first, nn.Linear)
        d = first.weight.detach()
        w2 = narrow.weight.detach()
        self.of_y = _linear(d, first.bias.detach() + d @ narrow.bias.detach())
        self.of_inside = _linear((d.double() @ w2.double()).to(d.dtype))

    def forward(self, y: Tensor, inside: Tensor) -> Tensor:
        """Both (B, d) -> action (B, A)."""
        return self.last(self.activation(self.of_y(y) + self.of_inside(inside)))


class FCNetStep(nn.Module):
    """token (B, D), ring (n, B C), window (2m, B C), slot (1,) -> action (B, A) and the next."""

    readout: Tensor
    leave: Tensor
    change: Tensor
    following: Tensor

    def __init__(self, network: FCNet, batch_size: int) -> None:
        super().__init__()
        config = network.config
        layers = list(network.layers)
        n = config.context_len
        m = config.n_modes
        self.width = config.hidden_dim
        self.batch_size = batch_size
        self.encoder = network.encoder
        self.layers: Any = nn.ModuleList(FourierStep(layer) for layer in layers)
        self.decoder = DecoderStep(layers[-1].ffn[2], network.decoder)

        r = torch.cat([layer.spectral.readout().detach() for layer in layers], dim=1)
        real = r[:m]
        imag = r[m:]
        products = torch.stack([torch.cat([real, -imag]), torch.cat([imag, real])])
        self.register_buffer("readout", products.repeat(1, 1, batch_size))
        leave, change = _phase_tables(m, n)
        self.register_buffer("leave", leave.to(r.dtype))
        self.register_buffer("change", change)
        self.register_buffer("following", (torch.arange(n) + 1) % n)

        columns = batch_size * r.shape[1]
        window = torch.zeros(2 * m, columns, dtype=torch.float64)
        self.state_tensors = (
            StateTensor("state_ring", r.new_zeros(n, columns), 1, in_place=True),
            StateTensor("state_window", window, 1, in_place=True),
            StateTensor("state_slot", torch.zeros(1, dtype=torch.int64), None),
        )

    def forward(self, token: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        """One control step; does not change `state`."""
        ring, window, slot = state
        modes = (window.to(self.readout.dtype) * self.readout).flatten(0, 1)
        past = self.leave.index_select(0, slot).mm(modes)
        if self.batch_size > 1:
            past = past.view(self.batch_size, -1)
        x = self.encoder(token)
        y = token
        inside = token
        entered = []
        for layer, part in zip(self.layers, past.split(self.width, dim=1), strict=True):
            normed, y, inside = layer(x, part)
            entered.append(normed)
            x = layer.narrow(inside) + y  # unused after the last layer
        row = torch.cat(entered, dim=1)

        ring = ring.index_copy(0, slot, row if self.batch_size == 1 else row.view(1, -1))
        next_slot = self.following.index_select(0, slot)
        rows = ring.index_select(0, torch.cat([slot, next_slot])).to(window.dtype)
        change = self.change.index_select(0, slot)[0]
        window = torch.addmm(window, change, rows)
        return self.decoder(y, inside), ring, window, next_slot


def _linear(weight: Tensor, bias: Tensor | None = None) -> nn.Linear:
    """A linear map with these weights."""
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias is not None, dtype=weight.dtype)
    linear.weight.data = weight.clone()
    if bias is not None:
        linear.bias.data = bias.clone()
    return linear


def _phase_tables(n_modes: int, context_len: int) -> tuple[Tensor, Tensor]:
    """The phases of every slot s, float64.

    leave (n, 4m): products of modes and readout -> Re sum_k r_k u_k^(s+1) Z_k.
    change (n, 2m, 2): adds the slot's input times u^(-s) and subtracts the next slot's.
    """
    angles = dft_angles(n_modes, context_len, context_len).double()
    after = angles.roll(-1, 1).T
    leave = torch.cat([after.cos(), after.cos(), -after.sin(), -after.sin()], dim=1)
    enter = torch.cat([angles.cos(), -angles.sin()])
    change = torch.stack([enter, -enter.roll(-1, 1)], dim=-1).transpose(0, 1)
    return leave, change.contiguous()


# Steps of any network, and of a whole policy.
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
