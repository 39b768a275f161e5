"""Several selections streamed together in given shares, for example an equal share per skill.

An epoch of a mixture has about as many steps as the union of the selections, and selection i gives
its share w_i of them (the normalised weights). Each of its episodes is visited r_i = w_i * S / S_i
times per epoch on average, where S and S_i are the steps of the union and of the selection:
floor(r_i) or ceil(r_i) times in one epoch, floor(m * r_i) or ceil(m * r_i) times in the first m
epochs. Visits are not drawn at random but a function of (seed, epoch), so order, ranks and resuming
work as for one selection. Each visit covers every step of its episode once, with its own phase.
"""

import hashlib
from collections.abc import Mapping
from math import isfinite
from typing import TYPE_CHECKING, Generic, TypeVar, Unpack

import numpy as np

from gaitforge.common.errors import DatasetError, listed
from gaitforge.datasets.hashing import hashed
from gaitforge.datasets.selection.selection import EpisodeSelection
from gaitforge.datasets.stream.materialise import Materialised
from gaitforge.datasets.stream.pool import SelectionSource
from gaitforge.datasets.stream.stream_config import StreamConfig, StreamSettings

if TYPE_CHECKING:
    from gaitforge.datasets.stream.window_stream import WindowStream

AnySelection = TypeVar("AnySelection", bound=EpisodeSelection)

_TURN = 5


class Mixture(Generic[AnySelection]):
    """Selections of one store and the share of the steps that each gives.

    They may overlap, then an episode's visits add up. `weights` None gives equal shares.
    `selection` is the union, whose rows `episode` in a batch counts, and `shares` the share
    of an epoch's steps by name. DatasetError for no selections or an empty one, selections from
    different stores or catalogs, weights for other names, or a weight that is not positive.
    """

    def __init__(
        self, selections: Mapping[str, AnySelection], weights: Mapping[str, float] | None = None
    ) -> None:
        if not selections:
            raise DatasetError("a mixture needs at least one selection")
        weights = dict.fromkeys(selections, 1.0) if weights is None else weights
        _check_weights(selections, weights)
        total = sum(weights.values())
        self.shares = {name: weights[name] / total for name in selections}
        first = next(iter(selections.values()))
        rows = np.unique(np.concatenate([selection.rows for selection in selections.values()]))
        self.selection = first.with_rows(rows)
        self._components: list[tuple[np.ndarray, float]] = []
        digest = hashlib.sha256(self.selection.arrays_hash.encode())
        for name, selection in selections.items():
            positions = np.searchsorted(self.selection.rows, selection.rows)
            rate = self.shares[name] * self.selection.steps / selection.steps
            self._components.append((positions, rate))
            digest.update(positions.astype("<i8").tobytes())
            digest.update(np.array(rate, "<f8").tobytes())
        self.hash = digest.hexdigest()

    def visits(self, seed: int, epoch: int) -> np.ndarray:
        """(E,) visits of each episode of the union in an epoch."""
        visits = np.zeros(len(self.selection), np.int64)
        ids = self.selection.episode_ids()
        for number, (positions, rate) in enumerate(self._components):
            # Evenly spaced turns in hashed order: each epoch's visits sum to the share within one.
            turns = np.empty(len(positions))
            order = np.argsort(hashed(seed, _TURN, number, ids[positions]), kind="stable")
            turns[order] = (np.arange(len(positions)) + 0.5) / len(positions)
            done = np.floor(rate * epoch + turns)
            visits[positions] += (np.floor(rate * (epoch + 1) + turns) - done).astype(np.int64)
        return visits

    def windows(
        self,
        window_len: int = 64,
        batch_size: int = 1024,
        materialised: Materialised | None = None,
        **settings: Unpack[StreamSettings],
    ) -> "WindowStream":
        """As `EpisodeSelection.windows`, for a mixture's epoch (see the module).

        `materialised` is a copy of the union to read instead of the store; DatasetError for a
        copy of another selection.
        """
        from gaitforge.datasets.stream.window_stream import WindowStream  # torch is slow to import

        if materialised is not None and materialised.hash != self.selection.arrays_hash:
            raise DatasetError(
                f"{materialised.path} is a copy of another selection; materialise the mixture's "
                "own .selection"
            )
        config = StreamConfig(window_len=window_len, batch_size=batch_size, **settings)
        return WindowStream(materialised or SelectionSource(self.selection), config, self)


def equal_shares(selection: AnySelection, column: str | None = None) -> Mixture[AnySelection]:
    """A mixture in which every value of a column gives the same share of the steps.

    By default the column is the second of the schema's `group_by`, such as the skill.
    """
    column = selection.catalog.check_column(column or selection.schema.group_by[1])
    codes, values = selection.catalog.codes(column)
    here = codes[selection.rows]
    groups = {str(values[code]): selection.rows[here == code] for code in np.unique(here)}
    return Mixture({name: selection.with_rows(groups[name]) for name in sorted(groups)})


def _check_weights(
    selections: Mapping[str, EpisodeSelection], weights: Mapping[str, float]
) -> None:
    if set(weights) != set(selections):
        raise DatasetError(
            f"weights are for {listed(weights)}; there must be one for each of {listed(selections)}"
        )
    for name, weight in weights.items():
        if not (isfinite(weight) and weight > 0):
            raise DatasetError(f"weight of {name} must be positive and finite, not {weight}")
    first = next(iter(selections.values()))
    for name, data in selections.items():
        if len(data) == 0:
            raise DatasetError(f"selection {name} is empty; leave it out")
        if data.store.path != first.store.path:
            raise DatasetError(
                f"selection {name} is of store {data.store.address}; a mixture takes selections of "
                f"one store, {first.store.address}"
            )
        if data.actions != first.actions:
            raise DatasetError(f"selection {name} has other actions; choose the same for all")
        if list(data.catalog.manifests) != list(first.catalog.manifests):
            raise DatasetError(
                f"selection {name} is of another state of the store; make all selections of a "
                "mixture from one catalog"
            )
