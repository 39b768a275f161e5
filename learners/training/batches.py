"""The batches of a training run, and its position in them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gaitforge.datasets import Selection, equal_shares
from gaitforge.datasets.schema import Schema
from gaitforge.datasets.selection.actions import CLEAN, EXECUTED, executed_place
from gaitforge.datasets.stream.pool import FINAL_OBS
from gaitforge.learners.policy.policy_network import PolicyNetwork
from gaitforge.learners.policy.tokens import BODY, CONDITION, needs_last_action
from gaitforge.learners.training.config import TrainConfig
from gaitforge.learners.training.distributed import Ranks
from gaitforge.learners.training.labels import LABEL_COLUMNS, Labels, shown_windows
from gaitforge.learners.training.objectives import OBJECTIVES, objective_fields

if TYPE_CHECKING:
    from gaitforge.datasets.stream.window_stream import WindowStream

Batch = dict[str, Tensor]


def open_stream(config: TrainConfig, selection: Selection, ranks: Ranks, seed: int) -> WindowStream:
    """This rank's share of the windows of a selection.

    Less than half a batch at an epoch's end is added to the previous batch, since a small batch
    would weigh as much as a whole one. `config` must be settled, see `TrainConfig.settled`.
    """
    assert config.prefix_len is not None, "a run settles it"
    objective = OBJECTIVES[config.objective]
    schema = selection.schema
    source = selection
    if config.equal_shares is not None:
        source = equal_shares(selection, config.equal_shares)
    return source.windows(
        window_len=config.window_len,
        prefix_len=config.prefix_len,
        batch_size=ranks.share(config.batch_size),
        fields=training_fields(config, schema),
        seed=seed,
        rank=ranks.rank,
        world_size=ranks.world_size,
        smallest_batch=max(1, config.batch_size // 2),
        return_to_go=objective.tokens == "return",
        transitions=bool(objective.values),
        actions=learned_actions(config, schema),
        last_action=needs_last_action(objective.tokens, schema.field("obs").slices),
        pin_memory=ranks.device.type == "cuda",
    )


def on_device(batch: Mapping[str, Tensor], ranks: Ranks) -> Batch:
    """The batch on this rank's device; asynchronous from page-locked memory."""
    return {name: value.to(ranks.device, non_blocking=True) for name, value in batch.items()}


def has_bodies(selection: Selection) -> bool:
    """Whether the episodes are stored with the bodies of their robots."""
    return BODY in selection.schema.names("episode")


def with_bodies(batches: Iterable[Batch], selection: Selection) -> Iterator[Batch]:
    """The stream's batches, with "body" (B, D) where the episodes have bodies."""
    if not has_bodies(selection):
        yield from batches
        return
    bodies = torch.from_numpy(selection.read(BODY))
    for batch in batches:
        yield {**batch, BODY: bodies[batch["episode"]]}


def learns_executed(config: TrainConfig, schema: Schema) -> bool:
    """Whether a run learns executed actions in place of the stored ones, which the schema tells."""
    return config.executed_actions and executed_place(schema) is not None


def learned_actions(config: TrainConfig, schema: Schema) -> str:
    """The actions of a run's batches, for a stream; empty for the only ones that a store has."""
    if executed_place(schema) is None:
        return ""
    return EXECUTED if config.executed_actions else CLEAN


def training_fields(config: TrainConfig, schema: Schema) -> tuple[str, ...]:
    """See `objective_fields`; ValueError, too, if critics would judge discrete actions' scores."""
    objective = OBJECTIVES[config.objective]
    if "choices" in schema.attributes and objective.values and not objective.gaussian:
        fits = [name for name, option in OBJECTIVES.items() if option.gaussian or not option.values]
        raise ValueError(
            f"the store's actions are discrete, and the critics of {config.objective} judge others "
            f"in between; allowed: {', '.join(fits)}"
        )
    return objective_fields(objective, schema, learns_executed(config, schema))


def training_columns(config: TrainConfig) -> tuple[str, ...]:
    """Columns of the episodes, beside the required ones, that a training may read."""
    shares = () if config.equal_shares is None else (config.equal_shares,)
    return (*LABEL_COLUMNS, *shares)


def training_hash(config: TrainConfig, selection: Selection) -> str:
    """Hash of all that a training can see of a selection: other annotations do not change it."""
    fields = (*training_fields(config, selection.schema), BODY, FINAL_OBS)
    return selection.hash_over(fields, training_columns(config))


def with_labels(batches: Iterable[Batch], labels: Labels | None) -> Iterator[Batch]:
    """The batches with "condition" (B, T, C), if there are labels."""
    for batch in batches:
        yield batch if labels is None else {**batch, CONDITION: labels.of_batch(batch)}


class TrainingBatches:
    """Endless batches of `stream`, epoch after epoch, with conditions, and with what is hidden."""

    def __init__(
        self,
        config: TrainConfig,
        selection: Selection,
        ranks: Ranks,
        policy: PolicyNetwork | None = None,
    ) -> None:
        """`policy`: the trained one; labels are computed where it is conditioned."""
        self.stream = open_stream(config, selection, ranks, config.seed)
        self._config = config
        self._selection = selection
        self._labels = None
        if policy is not None and policy.conditioned:
            self._labels = Labels(policy, selection, self.stream.config.prefix_len)

    def __iter__(self) -> Iterator[tuple[str, Batch]]:
        """Batches with their positions in words."""
        while True:
            state = self.stream.state_dict()
            for batch in with_bodies(self.stream, self._selection):
                number = state["cursor"] // self._config.batch_size
                yield f"epoch {state['epoch']}, batch {number}", self._hiding(batch, state["epoch"])
                state = self.stream.state_dict()

    def _hiding(self, batch: Batch, epoch: int) -> Batch:
        """A batch with its condition, of which some windows hide a part, as the config says."""
        config = self._config
        added = {}

        def shown(kind: str, hidden: float) -> Tensor:
            return shown_windows(kind, hidden, batch, config.seed, epoch)

        if self._labels is not None:
            labels_shown = shown("labels", config.condition_hidden)
            added[CONDITION] = self._labels.of_batch(batch, labels_shown)
        if config.last_action_hidden:
            added["action_shown"] = shown("action", config.last_action_hidden)
        if config.history_hidden:
            own_steps = batch["mask"].cumsum(dim=1) > 0
            added["shown"] = own_steps | shown("history", config.history_hidden)[:, None]
        return {**batch, **added}
