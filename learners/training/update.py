"""One optimiser step on one batch, shared by the ranks, with its optimiser and learning rate.

The optimisers, the learning-rate schedule and the moving average of the weights are here too.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.optimizer import ParamsT
from torch.optim.swa_utils import AveragedModel

from gaitforge.common.networks import load_optimiser_tensors, without_compiler
from gaitforge.learners.checkpoint import OPTIMISER, load_values, load_weights
from gaitforge.learners.policy_network import PolicyNetwork
from gaitforge.learners.training.batches import Batch, on_device
from gaitforge.learners.training.config import TrainConfig
from gaitforge.learners.training.distributed import Ranks
from gaitforge.learners.training.objectives import summed_loss


def learning_rate(step: int, config: TrainConfig) -> float:
    """The rate of optimiser step `step` (from 0): linear warm-up, then the config's schedule."""
    warmup = round(config.warmup_fraction * config.steps)
    if step < warmup:
        return config.peak_lr * (step + 1) / warmup
    if config.schedule == "constant":
        return config.peak_lr
    progress = (step - warmup) / max(1, config.steps - warmup)
    return 0.5 * config.peak_lr * (1.0 + math.cos(math.pi * progress))


def make_optimiser(parameters: ParamsT, config: TrainConfig) -> torch.optim.Optimizer:
    """The config's optimiser; weight decay is decoupled, but "adam" adds it to the gradient."""
    if config.optimiser == "lion":
        lion = without_compiler(Lion)
        return lion(parameters, config.peak_lr, config.betas, config.weight_decay)
    adam = torch.optim.AdamW if config.optimiser == "adamw" else torch.optim.Adam
    return without_compiler(adam)(
        parameters,
        lr=config.peak_lr,
        betas=config.betas,
        eps=config.eps,
        weight_decay=config.weight_decay,
        fused=True,
    )


class Lion(torch.optim.Optimizer):
    """Lion, Algorithm 2 of Chen et al. 2023, "Symbolic Discovery of Optimization Algorithms".

    The sign of an interpolated momentum, with decoupled weight decay.

    betas: (b1, b2); b1 interpolates the update, b2 is the momentum's decay.
    """

    def __init__(
        self,
        parameters: ParamsT,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(parameters, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """One update of every parameter that has a gradient."""
        for group in self.param_groups:
            beta_update, beta_momentum = group["betas"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if "momentum" not in state:
                    state["momentum"] = torch.zeros_like(parameter)
                momentum = state["momentum"]
                direction = momentum.lerp(parameter.grad, 1.0 - beta_update).sign_()
                parameter.mul_(1.0 - group["lr"] * group["weight_decay"])
                parameter.add_(direction, alpha=-group["lr"])
                momentum.lerp_(parameter.grad, 1.0 - beta_momentum)


def averaged_copy(policy: nn.Module, decay: float) -> AveragedModel:
    """A copy of the policy whose weights follow it: average <- d * average + (1 - d) * weight.

    d = min(decay, (1 + t) / (10 + t)) after optimiser step t, so that the average soon forgets the
    initial weights; the rule of TensorFlow's ExponentialMovingAverage with `num_updates`. The
    copy's `n_averaged` is t + 1.
    """

    def blend(average: Tensor, weight: Tensor, step: Tensor | int) -> Tensor:
        t = int(step)
        return average.lerp(weight, 1.0 - min(decay, (1 + t) / (10 + t)))

    average = AveragedModel(policy, avg_fn=blend)
    average.n_averaged.fill_(1)  # the initial weights
    return average.eval()


@dataclass(frozen=True)
class Update:
    """Result of a step: mean loss over the valid steps of all ranks, and their number."""

    loss: float
    valid_steps: int
    finite: bool


class ValueLosses(nn.Module, ABC):
    """Losses of a policy and its critics; a module that holds the critics and their targets.

    The losses are one sum: the policy's loss has gradients for the policy alone, a critic's for the
    critic alone. In steps that do not update the policy its parameters get no gradient, so that the
    optimiser skips them. A subclass takes the policy, settings of its `settings_class`, a
    dataclass, and the factor on rewards, which is `settings.reward_scale` unless that is None.

    Attributes:
        policy_rate: the policy's learning rate as a share of the critics'.
        draws_noise: whether its loss draws random numbers.
    """

    policy_rate: ClassVar[float] = 1.0
    draws_noise: ClassVar[bool] = True

    @abstractmethod
    def summed_loss(self, policy: PolicyNetwork, batch: Batch, number: int) -> Tensor:
        """All losses of optimiser step `number` (from 0), summed over the valid steps; scalar."""

    def updates_policy(self, number: int) -> bool:
        """Whether optimiser step `number` updates the policy."""
        return True

    @abstractmethod
    def after_step(self, policy: PolicyNetwork, number: int) -> None:
        """Update the targets after optimiser step `number`."""


class Updater:
    """The policy, its critics, their optimiser and the moving average, equal on every rank."""

    def __init__(
        self,
        policy: PolicyNetwork,
        config: TrainConfig,
        ranks: Ranks,
        values: ValueLosses | None = None,
    ) -> None:
        self.policy = policy.to(ranks.device)
        self.values = None if values is None else values.to(ranks.device)
        ranks.same_start(policy.state_dict())
        groups = [list(policy.parameters())]
        self._shares = [1.0]
        if values is not None:
            ranks.same_start(values.state_dict())
            groups.append(
                [parameter for parameter in values.parameters() if parameter.requires_grad]
            )
            self._shares = [values.policy_rate, 1.0]
        self._trained = [parameter for group in groups for parameter in group]
        self.optimiser = make_optimiser([{"params": group} for group in groups], config)
        decay = config.ema_decay
        self.average = None if decay is None else averaged_copy(policy, decay)
        self._config = config
        self._ranks = ranks
        if config.compile:
            policy.network.compile()

    def step(self, batch: Mapping[str, Tensor], number: int, rate: float) -> Update:
        """Take optimiser step `number` (from 0) at rate `rate`; skip it if it is not finite.

        Random numbers of the network depend on the seed, the step and the rank only. Raises
        ValueError if torch.compile fails.
        """
        seed = np.random.SeedSequence([self._config.seed, number, self._ranks.rank])
        torch.manual_seed(int(seed.generate_state(1, np.uint64)[0]))
        self.optimiser.zero_grad()
        valid = int(batch["mask"].sum())
        parts = [on_device(part, self._ranks) for part in self._parts(batch)]
        losses = [self._backward(part, valid, number) for part in parts]
        loss, valid = self._ranks.sum_gradients(self._trained, torch.stack(losses).sum(), valid)
        limit = self._config.grad_clip
        norm = torch.nn.utils.clip_grad_norm_(self._trained, torch.inf if limit is None else limit)
        value, finite = torch.stack([loss, (loss * norm).isfinite().to(loss.dtype)]).tolist()
        if finite:
            for group, share in zip(self.optimiser.param_groups, self._shares, strict=True):
                group["lr"] = rate * share
            self.optimiser.step()
            if self.values is not None:
                self.values.after_step(self.policy, number)
            if self.average is not None:
                self.average.update_parameters(self.policy)
        return Update(value, valid, bool(finite))

    def averages(self) -> dict[str, Tensor]:
        """Parameter name -> its moving average; empty without one.

        A parameter that the network uses twice has both names.
        """
        if self.average is None:
            return {}
        return dict(self.average.module.named_parameters(remove_duplicate=False))

    def load(self, tensors: Mapping[str, Tensor], step: int) -> None:
        """Load the weights, optimiser state and averages of a checkpoint after `step` steps."""
        load_weights(self.policy, tensors)
        if self.values is not None:
            load_values(self.values, tensors)
        load_optimiser_tensors(self.optimiser, tensors, OPTIMISER)
        if self.average is not None:
            load_weights(self.acting_policy(), tensors, averaged=True)
            self.average.n_averaged.fill_(step + 1)

    def acting_policy(self) -> PolicyNetwork:
        """The policy to validate and save: the average if there is one."""
        return self.policy if self.average is None else cast(PolicyNetwork, self.average.module)

    def summed_loss(self, policy: PolicyNetwork, batch: Batch) -> Tensor:
        """The policy's imitation loss on a batch, in the run's precision; scalar float32."""
        with self._precision():
            return summed_loss(policy, batch)

    def _precision(self) -> torch.autocast:
        bf16 = self._config.precision == "bf16"
        return torch.autocast(self._ranks.device.type, torch.bfloat16, enabled=bf16)

    def _learned(self, part: Batch, number: int) -> Tensor:
        """The loss to learn from; with values, the sum of the critics' and the policy's losses."""
        if self.values is None:
            return self.summed_loss(self.policy, part)
        if not part["mask"].any():  # none of its transitions is known
            updated = self._trained
            if not self.values.updates_policy(number):  # every rank has the same gradients
                updated = [value for value in self.values.parameters() if value.requires_grad]
            return 0.0 * torch.stack([parameter.sum() for parameter in updated]).sum()
        with self._precision():
            return self.values.summed_loss(self.policy, part, number)

    def _backward(self, part: Batch, valid: int, number: int) -> Tensor:
        try:
            loss = self._learned(part, number) / max(valid, 1)
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
        """The batch in `accumulate` parts, fewer if it has fewer windows."""
        if self._config.accumulate == 1:
            return [batch]
        chunks = {name: value.chunk(self._config.accumulate) for name, value in batch.items()}
        return [
            dict(zip(chunks, values, strict=True)) for values in zip(*chunks.values(), strict=True)
        ]
