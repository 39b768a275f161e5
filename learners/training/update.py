"""One step of the optimiser on one batch, shared among the ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from learners.policy.policy_network import PolicyNetwork
from learners.training.averaging import AveragedWeights
from learners.training.batches import Batch, on_device
from learners.training.config import TrainConfig
from learners.training.distributed import Ranks
from learners.training.objectives import summed_loss
from learners.training.optimisation import make_optimiser, set_learning_rate


@dataclass(frozen=True)
class Update:
    """What one step found: the loss a valid step over all ranks, and how many those are."""

    loss: float
    valid_steps: int
    finite: bool


class Updater:
    """Computes losses and moves the weights, the same way on every rank.

    Raises:
        ValueError: torch.compile was asked for and fails.
    """

    def __init__(self, policy: PolicyNetwork, config: TrainConfig, ranks: Ranks) -> None:
        self.policy = policy.to(ranks.device)
        ranks.same_start(policy.state_dict())
        self.optimiser = make_optimiser(policy.parameters(), config)
        self.averages = (
            None if config.ema_decay is None else AveragedWeights(policy, config.ema_decay)
        )
        self._config = config
        self._ranks = ranks
        if config.compile:
            policy.network.compile()

    def step(self, batch: Mapping[str, Tensor], number: int, rate: float) -> Update:
        """Step `number` (from 0) at learning rate `rate`; the weights stay if it is not finite.

        Networks that draw random numbers draw the same ones whenever this step is repeated.
        """
        torch.manual_seed(self._random_seed(number))
        self.optimiser.zero_grad()
        valid = int(batch["mask"].sum())
        parts = [on_device(part, self._ranks) for part in self._parts(batch)]
        losses = [self._backward(part, valid) for part in parts]
        parameters = list(self.policy.parameters())
        loss, valid = self._ranks.sum_gradients(parameters, torch.stack(losses).sum(), valid)
        limit = self._config.grad_clip
        norm = torch.nn.utils.clip_grad_norm_(parameters, torch.inf if limit is None else limit)
        value, finite = torch.stack([loss, (loss * norm).isfinite().to(loss.dtype)]).tolist()
        if finite:
            set_learning_rate(self.optimiser, rate)
            self.optimiser.step()
            if self.averages is not None:
                self.averages.update(number + 1)
        return Update(value, valid, bool(finite))

    def summed_loss(self, batch: Batch) -> Tensor:
        """Of a batch on the device, in the precision of the run; scalar float32."""
        device, bf16 = self._ranks.device.type, self._config.precision == "bf16"
        with torch.autocast(device, torch.bfloat16, enabled=bf16):
            return summed_loss(self.policy, batch)

    def _backward(self, part: Batch, valid: int) -> Tensor:
        try:
            loss = self.summed_loss(part) / valid
            loss.backward()
        except RuntimeError as error:
            if not self._config.compile:
                raise
            reason = str(error).strip().splitlines()[0]
            raise ValueError(
                f"torch.compile failed ({reason}); it needs a compiler, or set compile=false"
            ) from error
        return loss.detach()

    def _parts(self, batch: Mapping[str, Tensor]) -> list[Mapping[str, Tensor]]:
        """The batch in as many parts as are to be accumulated, fewer if it has fewer windows."""
        if self._config.accumulate == 1:
            return [batch]
        chunks = {name: value.chunk(self._config.accumulate) for name, value in batch.items()}
        return [
            dict(zip(chunks, values, strict=True)) for values in zip(*chunks.values(), strict=True)
        ]

    def _random_seed(self, number: int) -> int:
        parts = [self._config.seed, number, self._ranks.rank]
        return int(np.random.SeedSequence(parts).generate_state(1, np.uint64)[0])
