"""The float32 buffers that tensors share with the simulator, and what was set and not yet taken."""

from __future__ import annotations

import numpy as np

from ._batch import Batch
from ._model import Actor, pose_array
from ._values import GymMisuse, Tensor, TensorDataType

_XYZW = [0, 1, 2, 4, 5, 6, 3]
_SAME = 1e-6


class Buffers:
    """root (actors, 13), dof (joints, 2), contact (bodies, 3) and body (bodies, 13).

    A buffer changes only when it is refreshed. What setters bring is kept aside until the next
    `simulate`: until then only the refreshed buffer of its own kind shows it.
    """

    def __init__(self, actors: list[Actor], batches: list[Batch]):
        self._actors = actors
        self._batches = batches
        n_bodies = sum(actor.body_count for actor in actors)
        n_dofs = sum(len(actor.dofs) for actor in actors)
        self.root = np.zeros((len(actors), 13), np.float32)
        self.dof = np.zeros((n_dofs, 2), np.float32)
        self.contact = np.zeros((n_bodies, 3), np.float32)
        self.body = np.zeros((n_bodies, 13), np.float32)
        self._root_set = np.zeros(len(actors), bool)
        self._root_next = np.zeros((len(actors), 13), np.float32)
        self._dof_set = np.zeros(len(actors), bool)
        self._dof_next = np.zeros((n_dofs, 2), np.float32)
        self._efforts = np.zeros(n_dofs, np.float32)
        self.movable = np.array([not actor.asset.fixed for actor in actors])
        self.jointed = np.array([len(actor.dofs) > 0 for actor in actors])
        self._indices = [np.array([a.index for a in batch.movable]) for batch in batches]
        self._dofs = [_rows([(a.first_dof, len(a.dofs)) for a in b.movable]) for b in batches]
        self._bodies = [_rows([(a.first_body, a.body_count) for a in b.movable]) for b in batches]
        self._all_bodies = [
            np.concatenate(
                [bodies, _rows([tuple_of(box) for boxes in b.boxes for box in boxes], len(bodies))],
                axis=1,
            )
            for bodies, b in zip(self._bodies, batches, strict=True)
        ]
        self._rest = {
            actor.index: pose_array(actor.pose)[_XYZW] for actor in actors if actor.asset.fixed
        }
        for name in ("root", "dof", "contact", "body"):
            self.refresh(name)

    def refresh(self, name: str) -> None:
        """Copy the present state of one kind."""
        {
            "root": self._refresh_root,
            "dof": self._refresh_dof,
            "contact": self._refresh_contact,
            "body": self._refresh_body,
        }[name]()

    def _refresh_root(self) -> None:
        for index, pose in self._rest.items():
            self.root[index, :7] = pose
            self.root[index, 7:] = 0.0
        for batch, indices in zip(self._batches, self._indices, strict=True):
            self.root[indices] = batch.root_states()
        self.root[self._root_set] = self._root_next[self._root_set]

    def _refresh_dof(self) -> None:
        for batch, rows, indices in zip(self._batches, self._dofs, self._indices, strict=True):
            self.dof[rows] = batch.dof_states()
            changed = rows[self._dof_set[indices]]
            self.dof[changed] = self._dof_next[changed]

    def _refresh_contact(self) -> None:
        for batch, rows in zip(self._batches, self._all_bodies, strict=True):
            self.contact[rows] = batch.contact_forces()

    def _refresh_body(self) -> None:
        for index, pose in self._rest.items():
            first = self._actors[index].first_body
            self.body[first, :7] = pose
        for batch, rows in zip(self._batches, self._bodies, strict=True):
            self.body[rows] = batch.body_states()

    def set_root(self, call: str, tensor: Tensor, ids: np.ndarray | None) -> None:
        """Keep root states of movable actors; a whole tensor must leave the fixed ones in place."""
        states = numbers(call, tensor, self.root.size).reshape(self.root.shape)
        if ids is None:
            moved = np.abs(states[~self.movable, :7] - self._fixed_poses()) > _SAME
            if moved.any():
                raise GymMisuse(f"{call}: a fixed actor cannot be moved")
            ids = np.flatnonzero(self.movable)
        elif not self.movable[ids].all():
            raise GymMisuse(f"{call}: {_first(ids, ~self.movable)} is a fixed actor's id")
        lengths = np.linalg.norm(states[ids, 3:7], axis=1)
        if not (np.abs(lengths - 1) < 1e-3).all():
            raise GymMisuse(f"{call}: quaternions (x, y, z, w) are not of length 1")
        self._root_set[ids] = True
        self._root_next[ids] = states[ids]

    def set_dof(self, call: str, tensor: Tensor, ids: np.ndarray | None) -> None:
        """Keep joint states."""
        states = numbers(call, tensor, self.dof.size).reshape(self.dof.shape)
        if ids is None:
            ids = np.flatnonzero(self.jointed)
        elif not self.jointed[ids].all():
            raise GymMisuse(f"{call}: {_first(ids, ~self.jointed)} is an actor's without joints")
        self._dof_set[ids] = True
        for index in ids:
            actor = self._actors[index]
            rows = slice(actor.first_dof, actor.first_dof + len(actor.dofs))
            self._dof_next[rows] = states[rows]

    def set_efforts(self, call: str, tensor: Tensor) -> None:
        """Keep joint efforts for one `simulate`."""
        self._efforts[:] = numbers(call, tensor, self._efforts.size).reshape(-1)

    def ids(self, call: str, tensor: Tensor, count: int) -> np.ndarray:
        """Actor ids of an indexed setter."""
        if tensor.dtype != TensorDataType.DTYPE_UINT32:
            raise GymMisuse(f"{call}: actor ids are {tensor.dtype.name}; they have to be int32")
        if tensor.ndim != 1 or not 0 <= count <= tensor.shape[0]:
            raise GymMisuse(f"{call}: {count} actor ids of a tensor {tensor.shape}")
        ids = tensor.array[:count].astype(np.int64)
        n = len(self._actors)
        if ((ids < 0) | (ids >= n)).any():
            raise GymMisuse(
                f"{call}: actor ids run from 0 to {n - 1}, not {ids.min()}..{ids.max()}"
            )
        if len(np.unique(ids)) != len(ids):
            raise GymMisuse(f"{call}: an actor id is there twice")
        return ids

    def simulate(self) -> None:
        """Hand over what was set, and step every batch."""
        for batch, indices, dofs in zip(self._batches, self._indices, self._dofs, strict=True):
            rows = np.flatnonzero(self._root_set[indices])
            batch.set_root_states(rows, self._root_next[indices[rows]])
            rows = np.flatnonzero(self._dof_set[indices])
            batch.set_dof_states(rows, self._dof_next[dofs[rows]])
            batch.step(self._efforts[dofs])
        self._root_set[:] = self._dof_set[:] = False
        self._efforts[:] = 0.0

    def _fixed_poses(self) -> np.ndarray:
        return np.array(list(self._rest.values())).reshape(-1, 7)


def numbers(call: str, tensor: Tensor, size: int) -> np.ndarray:
    """The whole tensor's float32 numbers."""
    if tensor.dtype != TensorDataType.DTYPE_FLOAT32:
        raise GymMisuse(f"{call}: numbers are {tensor.dtype.name}; they have to be float32")
    if tensor.array.size != size:
        raise GymMisuse(f"{call}: {tensor.shape} numbers; the whole tensor has {size}")
    if not np.isfinite(tensor.array).all():
        raise GymMisuse(f"{call}: numbers that are not finite")
    return tensor.array


def tuple_of(box: Actor) -> tuple[int, int]:
    """Where the one body of a box is."""
    return box.first_body, 1


def _rows(spans: list[tuple[int, int]], rows: int | None = None) -> np.ndarray:
    """(rows, ...) indices: a row a span, or all spans' indices shared out over `rows`."""
    indices = [np.arange(first, first + count) for first, count in spans]
    if rows is None:
        return np.stack(indices)
    return np.array(indices, dtype=np.int64).reshape(rows, -1)


def _first(ids: np.ndarray, wrong: np.ndarray) -> int:
    return int(ids[wrong[ids]][0])
