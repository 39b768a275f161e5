"""The batches of a training run, its position in them, and the labels of a conditioned policy.

A label says how good the episode of a step is. In all labels 1.0 stands for the expert. Legend: G
an episode's return, R_t the rewards from step t to its end, H the steps of the longest selected
episode, N(x) = (x - zero) / (expert - zero) with the returns that count as 0 and 1.

- return_to_go: N(R_t), as in Decision Transformer (Chen et al. 2021) and the FCNet paper.
- return: N(G), the same at all steps of an episode.
- rate: N(R_t H / (H - t)), the mean reward of the steps that are left, times H.
- share: (G - zero) / (E - zero), where E is the mean return in the episode's cell (terrain, skill
  and level) of the policy that is the best in all cells together, least disturbed.
- driver: the mean share of the least disturbed episodes of the policy whose actions are stored:
  with its least noise, and driven by no other policy. It has no luck in it, and suits learners of
  those actions, which are chosen as if undisturbed.
- advantage: the rank, 0 to 1 in `ADVANTAGE_BINS` bins, of rate minus the rate that a linear
  function of the observation expects.

Everything that labels are measured by (H, the cells' and the policies' means, the linear function
and its ranks) is of the episodes that were learned from, whatever episodes are labelled:
`LabelScale`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from gaitforge.datasets import Selection, equal_shares
from gaitforge.datasets.schema import CLEAN, EXECUTED, Schema, executed_place
from gaitforge.datasets.stream.pool import FINAL_OBS
from gaitforge.learners.policy_network import ExpectedRate, Key, LabelScale, PolicyNetwork, key_of
from gaitforge.learners.tokens import BODY, CONDITION, RETURN_TO_GO, needs_last_action
from gaitforge.learners.training.config import TrainConfig
from gaitforge.learners.training.distributed import Ranks
from gaitforge.learners.training.objectives import OBJECTIVES, objective_fields

if TYPE_CHECKING:
    from gaitforge.datasets.stream.window_stream import WindowStream


# Labels: how good the episode of a step is.
CELL = ("terrain", "skill", "level", "robot")
DRIVER = ("expert", "expert_hash", "quality")
DISTURBANCE = ("action_noise", "policy_share")
"""Columns that name an episode's cell, the policy whose actions are stored, and what disturbed it
(noise, another policy that drove), where a store has them."""
LABEL_COLUMNS = (*CELL, *DRIVER, *DISTURBANCE)
"""All columns that labels are made of, beside the return."""
ADVANTAGE_BINS = 10
_PER_STEP = (RETURN_TO_GO, "rate", "advantage")
_SAMPLED_STEPS = 100_000
_SALT = {"labels": 1, "action": 2, "history": 3}


class Labels:
    """The labels of a selection's batches.

    Args:
        policy: its condition says which labels, its returns those that count as 0 and 1.
        selection: the episodes, whose rows the batches name.
        prefix_len: of the stream of the batches.
        learned: the training's episodes, by which labels are measured; by default what the policy
            keeps of them, and for one that keeps nothing the selection.
    """

    def __init__(
        self,
        policy: PolicyNetwork,
        selection: Selection,
        prefix_len: int,
        learned: Selection | None = None,
    ) -> None:
        self._condition = policy.condition
        self._share = policy.share
        self._prefix_len = prefix_len
        kept = policy.label_scale if learned is None else None
        self.scale = kept or label_scale(policy, learned or selection)
        self._episodes = _episode_labels(policy, selection.episodes(), self.scale)

    def of_batch(self, batch: Mapping[str, Tensor], shown: Tensor | None = None) -> Tensor:
        """The condition (B, T, C) of a batch of windows.

        Args:
            shown: (B,) bool, windows whose labels are not hidden; None for all.
        """
        labels = self._condition.labels
        condition = np.empty((*batch["obs"].shape[:2], self._condition.width), np.float32)
        for index, name in enumerate(labels):
            condition[..., index] = self._column(name, batch)
        if self._condition.hides:
            condition[..., -1] = 1.0
            if shown is not None:
                condition[~shown.numpy()] = 0.0
        return torch.from_numpy(condition * np.float32(self._condition.scale))

    def _column(self, name: str, batch: Mapping[str, Tensor]) -> np.ndarray:
        """(B, T) of a label, or (B, 1) of one that is the same at all steps."""
        if name in self._episodes:
            return self._episodes[name][batch["episode"].numpy()][:, None]
        if name == RETURN_TO_GO:
            return self._share(batch[RETURN_TO_GO].numpy())
        rate = self._share(_rewards_at_rate(batch, self.scale.horizon, self._prefix_len))
        if name == "rate":
            return rate
        assert self.scale.rate is not None, "advantage is a label"
        return self.scale.rate.rank(batch["obs"].numpy(), rate)


def label_scale(policy: PolicyNetwork, learned: Selection) -> LabelScale:
    """What the labels of a policy that learns from these episodes are measured by."""
    horizon = int(learned.lengths.max())
    names = policy.condition.labels
    cells = {}
    drivers = {}
    rate = None
    if {"share", "driver"} & set(names):
        table = learned.episodes()
        total = table.column("return").to_numpy()
        cells, drivers = cells_and_drivers(
            table, total, policy.return_at(0.0), policy.return_at(1.0)
        )
    if "advantage" in names:
        rate = _expected_rate(policy, learned, horizon)
    return LabelScale(horizon, cells, drivers, rate)


def _rewards_at_rate(batch: Mapping[str, Tensor], horizon: int, prefix_len: int) -> np.ndarray:
    """(B, T) mean reward of the steps that are left, times the horizon; of a stream's batch."""
    remaining = batch[RETURN_TO_GO].numpy()
    offset = batch["offset"].numpy()
    first = offset - np.minimum(offset, prefix_len)
    steps = horizon - (first[:, None] + np.arange(remaining.shape[1]))
    return remaining * (horizon / np.maximum(steps, 1))


def _expected_rate(policy: PolicyNetwork, selection: Selection, horizon: int) -> ExpectedRate:
    """Ridge regression of the rate on the observation, and the quantiles of what exceeds it."""
    obs = []
    rates = []
    stream = selection.windows(window_len=1, batch_size=4096, fields=("obs",), return_to_go=True)
    for batch in stream:
        obs.append(batch["obs"][:, 0].numpy().astype(np.float64))
        rates.append(policy.share(_rewards_at_rate(batch, horizon, 0))[:, 0])
        if sum(map(len, obs)) >= _SAMPLED_STEPS:
            break
    stream.close()
    x = np.concatenate(obs)
    y = np.concatenate(rates)
    mean = x.mean(axis=0)
    std = np.maximum(x.std(axis=0), 1e-6)
    features = ExpectedRate.features(x, mean, std)
    squares = features.T @ features + 1e-3 * len(x) * np.eye(features.shape[1])
    weights = np.linalg.solve(squares, features.T @ y)
    levels = np.arange(1, ADVANTAGE_BINS) / ADVANTAGE_BINS
    return ExpectedRate(mean, std, weights, np.quantile(y - features @ weights, levels))


def _episode_labels(
    policy: PolicyNetwork, table: pa.Table, scale: LabelScale
) -> dict[str, np.ndarray]:
    """(E,) labels that are the same at all steps of an episode, from the episodes' catalog."""
    names = [name for name in policy.condition.labels if name not in _PER_STEP]
    if not names:
        return {}
    total = table.column("return").to_numpy()
    labels = {"return": policy.share(total)}
    if {"share", "driver"} & set(names):
        zero = policy.return_at(0.0)
        expert = policy.return_at(1.0)
        labels["driver"], labels["share"] = driver_and_share(table, total, zero, expert, scale)
    return {name: labels[name] for name in names}


def driver_and_share(
    table: pa.Table, total: np.ndarray, zero: float, expert: float, scale: LabelScale | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """The labels "driver" and "share" (E,) of episodes with a catalog and returns `total` (E,).

    A policy that `scale` lacks, which was not learned from, has its own mean share here.
    """
    cells, drivers = cells_and_drivers(table, total, zero, expert)
    if scale is not None:
        cells = scale.cells
        drivers = {**drivers, **scale.drivers}
    share = _shares(table, total, zero, expert, cells)
    codes, keys = _keys(table, DRIVER)
    means = np.array([drivers[key] for key in keys])
    return means[codes].astype(np.float32), share.astype(np.float32)


def cells_and_drivers(
    table: pa.Table, total: np.ndarray, zero: float, expert: float
) -> tuple[dict[Key, float], dict[Key, float]]:
    """`LabelScale.cells` and `.drivers` of episodes with a catalog and returns `total` (E,)."""
    (cell, cell_keys), (driver, driver_keys) = _keys(table, CELL), _keys(table, DRIVER)
    disturbance = np.zeros(len(total))
    for name in DISTURBANCE:
        if name in table.column_names:
            disturbance += table.column(name).fill_null(0.0).to_numpy()
    least = np.full(len(driver_keys), np.inf)
    np.minimum.at(least, driver, disturbance)
    clean = disturbance == least[driver]
    returns = _means(driver[clean], total[clean], len(least))
    # Of equal ones the first by name: the order of the episodes must not matter.
    equal = np.flatnonzero(returns == returns.max())
    best = clean & (driver == min(equal, key=lambda number: driver_keys[number]))
    references = _means(cell[best], total[best], len(cell_keys))
    # A cell in which the best policy did not act, or is no better than 0, has no share of its own.
    pairs = zip(cell_keys, references.tolist(), strict=True)
    cells = {key: value for key, value in pairs if value > zero}
    share = _shares(table, total, zero, expert, cells)
    means = _means(driver[clean], share[clean], len(least))
    return cells, dict(zip(driver_keys, means.tolist(), strict=True))


def _shares(
    table: pa.Table, total: np.ndarray, zero: float, expert: float, cells: Mapping[Key, float]
) -> np.ndarray:
    """(E,) the label "share" in float64."""
    codes, keys = _keys(table, CELL)
    references = np.array([cells.get(key, expert) for key in keys])
    return (total - zero) / (references[codes] - zero)


def _means(group: np.ndarray, values: np.ndarray, groups: int) -> np.ndarray:
    """(groups,) means of the values of each group; -inf for an empty one."""
    counts = np.bincount(group, minlength=groups)
    sums = np.bincount(group, values, groups)
    return np.where(counts > 0, sums / np.maximum(counts, 1), -np.inf)


def _keys(table: pa.Table, columns: tuple[str, ...]) -> tuple[np.ndarray, list[Key]]:
    """(E,) the number of each episode's values in some columns, and each number's key.

    A column that the table lacks counts as one without values.
    """
    codes = np.zeros(len(table), np.int64)
    for name in columns:
        if name in table.column_names:
            values = table.column(name).combine_chunks().dictionary_encode("encode")
            indices = values.indices.to_numpy()
            codes = np.unique(codes * (indices.max() + 1) + indices, return_inverse=True)[1]
    _, first = np.unique(codes, return_index=True)
    examples = table.take(pa.array(first))
    held = [name for name in columns if name in table.column_names]
    values = zip(*(examples.column(name).to_pylist() for name in held), strict=True)
    rows = [dict(zip(held, row, strict=True)) for row in values] if held else [{}] * len(first)
    return codes, [key_of([row.get(name) for name in columns]) for row in rows]


def shown_windows(
    kind: str, hidden: float, batch: Mapping[str, Tensor], seed: int, epoch: int
) -> Tensor:
    """(B,) windows in which something is shown, a function of seed, epoch and window alone.

    Args:
        kind: what may be hidden, a key of `_SALT`; hidden: the share of windows in which it is.
    """
    words = (seed, epoch, _SALT[kind])
    mixed = np.uint64(np.random.SeedSequence(words).generate_state(1, np.uint64)[0])
    for numbers in (batch["episode"], batch["offset"]):
        mixed = _mix(mixed ^ _mix(numbers.numpy().astype(np.uint64)))
    uniform = (mixed >> np.uint64(11)) * 2.0**-53
    return torch.from_numpy(uniform >= hidden)


def _mix(x: np.ndarray) -> np.ndarray:
    """SplitMix64, one step from state x.

    Steele et al. 2014, "Fast Splittable Pseudorandom Number Generators".
    """
    with np.errstate(over="ignore"):
        x = x + np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))


# The batches, and a run's position in them.
Batch = dict[str, Tensor]


def longest_episode(selection: Selection) -> int:
    """Steps of the longest episode; 0 without any."""
    return int(selection.lengths.max()) if len(selection) else 0


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


def kind_columns(config: TrainConfig, schema: Schema) -> tuple[str, ...]:
    """The columns of which a sample of a run's episodes should have every value.

    Their robots, experts, qualities and cells, and what `equal_shares` names.
    """
    shares = () if config.equal_shares is None else (config.equal_shares,)
    return tuple(dict.fromkeys((*shares, "robot", *DRIVER, *CELL, *schema.group_by)))


def on_device(batch: Mapping[str, Tensor], ranks: Ranks) -> Batch:
    """The batch on this rank's device; asynchronous from page-locked memory."""
    return {name: value.to(ranks.device, non_blocking=True) for name, value in batch.items()}


def has_bodies(selection: Selection) -> bool:
    """Whether the episodes are stored with the bodies of their robots."""
    return BODY in selection.schema.names("episode")


def without_padding(
    config: TrainConfig, batches: Iterable[Batch], selection: Selection
) -> Iterator[Batch]:
    """The stream's batches; with `whole_history` as long as the longest episode at most.

    A row is a piece of one episode, so what follows is padding in every row.
    """
    longest = longest_episode(selection)
    for batch in batches:
        if config.whole_history:
            batch = {
                name: value[:, :longest] if value.ndim > 1 else value
                for name, value in batch.items()
            }
        yield batch


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
        fits = [
            name
            for name, option in OBJECTIVES.usable().items()
            if option.gaussian or not option.values
        ]
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
            batches = without_padding(self._config, self.stream, self._selection)
            for batch in with_bodies(batches, self._selection):
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
