"""Updates a second of TorchRL's losses; run by an interpreter that has it.

python torchrl_program.py REQUEST RESULT

The request is a .npz file that `beside_d3rlpy` writes: one batch, and as "settings" JSON with the
objective and the number of updates. The last line printed is JSON. Everything runs on one thread.
"""

# Run by another interpreter, which has TorchRL.
# pyright: reportMissingImports=false

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import Tensor, nn
from torchrl.data import Bounded
from torchrl.modules import (
    IndependentNormal,
    NormalParamExtractor,
    ProbabilisticActor,
    TanhNormal,
    ValueOperator,
)
from torchrl.objectives import CQLLoss, IQLLoss, SoftUpdate, TD3BCLoss

WIDTH = 256


def layers(ins: int, outs: int, activation: type[nn.Module]) -> nn.Sequential:
    """Two hidden layers."""
    first, second = nn.Linear(ins, WIDTH), nn.Linear(WIDTH, WIDTH)
    return nn.Sequential(first, activation(), second, activation(), nn.Linear(WIDTH, outs))


class Q(nn.Module):
    """Values (N, 1) of observations and actions."""

    def __init__(self, obs_dim: int, act_dim: int) -> None:
        super().__init__()
        self.layers = layers(obs_dim + act_dim, 1, nn.ReLU)

    def forward(self, obs: Tensor, action: Tensor) -> Tensor:
        """(N, D) and (N, A) -> (N, 1)."""
        return self.layers(torch.cat([obs, action], -1))


def loss_of(objective: str, obs_dim: int, act_dim: int) -> Any:
    """TorchRL's loss module, on networks like ours."""
    q = ValueOperator(Q(obs_dim, act_dim), in_keys=["observation", "action"])
    spec = Bounded(-torch.ones(act_dim), torch.ones(act_dim), (act_dim,))
    if objective == "td3-bc":
        network = nn.Sequential(layers(obs_dim, act_dim, nn.GELU), nn.Tanh())
        actor = TensorDictModule(network, ["observation"], ["action"])
        return TD3BCLoss(actor, q, action_spec=spec, loss_function="l2")
    network = nn.Sequential(layers(obs_dim, 2 * act_dim, nn.GELU), NormalParamExtractor())
    actor = ProbabilisticActor(
        TensorDictModule(network, ["observation"], ["loc", "scale"]),
        in_keys=["loc", "scale"],
        spec=spec,
        distribution_class={"cql": TanhNormal, "iql": IndependentNormal}[objective],
    )
    if objective == "cql":
        return CQLLoss(actor, q, loss_function="l2", action_spec=spec, min_q_weight=5.0)
    v = ValueOperator(layers(obs_dim, 1, nn.ReLU), in_keys=["observation"])
    return IQLLoss(actor, q, v, loss_function="l2", temperature=3.0, expectile=0.7)


def batch_of(given: Mapping[str, np.ndarray]) -> TensorDict:
    """The batch in TorchRL's form."""
    tensor = {name: torch.from_numpy(value) for name, value in given.items()}
    ended = tensor["terminal"].bool()[:, None]
    following = {
        "observation": tensor["next_obs"],
        "reward": tensor["reward"][:, None],
        "done": ended,
        "terminated": ended,
    }
    now = {"observation": tensor["obs"], "action": tensor["action"], "next": following}
    return TensorDict(now, [len(ended)])


def updater(objective: str, loss: Any, batch: TensorDict) -> Callable[[int], None]:
    """What does one update, as TorchRL's own programs do them."""
    loss.make_value_estimator(gamma=0.99)
    targets = SoftUpdate(loss, tau=0.005)
    critics = [each for name, each in loss.named_parameters() if "actor" not in name]
    actor = [each for name, each in loss.named_parameters() if "actor" in name]
    optimisers = [torch.optim.Adam(group, 3e-4, fused=True) for group in (critics, actor)]

    def learn(value: Tensor, *which: int) -> None:
        value.backward()
        for number in which:
            optimisers[number].step()
            optimisers[number].zero_grad()

    def update(number: int) -> None:
        given = batch.copy()
        if objective == "td3-bc":
            learn(loss.qvalue_loss(given)[0], 0)
            if number % 2 == 0:
                learn(loss.actor_loss(given)[0], 1)
        elif objective == "iql":
            found = loss(given)
            learn(found["loss_qvalue"] + found["loss_value"] + found["loss_actor"], 0, 1)
        else:
            critic = loss.q_loss(given)[0] + loss.cql_loss(given)[0]
            value, sampled = loss.actor_loss(given)
            learn(critic + value + loss.alpha_loss(sampled)[0], 0, 1)
        targets.step()

    return update


def speed(given: dict[str, np.ndarray], settings: Mapping[str, Any]) -> None:
    """Print the updates a second."""
    objective, updates = settings["objective"], settings["updates"]
    batch = batch_of(given)
    loss = loss_of(objective, batch["observation"].shape[1], batch["action"].shape[1])
    update = updater(objective, loss, batch)
    for number in range(updates // 10 + 1):
        update(number)
    started = time.perf_counter()
    for number in range(updates):
        update(number)
    print(json.dumps({"updates_per_s": updates / (time.perf_counter() - started)}))


if __name__ == "__main__":
    torch.set_num_threads(1)
    request, result = sys.argv[1:]
    with np.load(request) as archive:
        arrays = dict(archive)
    speed(arrays, json.loads(str(arrays.pop("settings"))))
    np.savez(result)
