"""Stores that each format can hold, and what of them has to come back."""

import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gaitforge.datasets import DatasetError, Field, Schema, Selection, Store, open_store
from gaitforge.datasets.formats.transfer.exporting import export_selection
from gaitforge.datasets.formats.transfer.importing import import_source
from tests.datasets.making import part_input, small_store

ENDINGS = {
    "terminated": (True, False),
    "truncated": (False, True),
    "cut off": (False, False),
    "both": (True, True),
}
"""Ways an episode ends: the catalog's (terminated, truncated)."""

Episode = tuple[int, str]
"""Its length, and the name of its ending."""


def random_episodes(count: int, seed: int = 0) -> list[Episode]:
    """Lengths from 1 on, and every kind of ending in the middle and at the end."""
    rng = np.random.default_rng(seed)
    lengths = rng.geometric(0.2, count)
    return [
        (int(n), str(kind))
        for n, kind in zip(lengths, rng.choice(list(ENDINGS), count), strict=True)
    ]


def _columns(episodes: Sequence[Episode], first: int, rewards: np.ndarray) -> dict[str, Any]:
    lengths = np.array([length for length, _ in episodes])
    ends = np.array([ENDINGS[kind] for _, kind in episodes])
    ids = first + np.arange(len(episodes))
    starts = np.cumsum(lengths) - lengths
    return part_input(lengths.tolist(), first)["episodes"] | {
        "skill": [("stand", "run", "größe")[i % 3] for i in ids],
        "return": np.add.reduceat(rewards.astype(float), starts),
        "terminated": ends[:, 0],
        "truncated": ends[:, 1],
    }


Values = dict[str, np.ndarray]


def make_store(
    path: Path,
    schema: Schema,
    episodes: Sequence[Episode],
    parts: int,
    change: Callable[[Values, np.ndarray], Values] = lambda values, lengths: {},
    further: Callable[[int, int], dict[str, Any]] = lambda number, count: {},
) -> Store:
    """Random values in every field, but those that `change` gives, and `further` columns."""
    store, first = Store.create(path, schema), 0
    for number, chosen in enumerate(_shares(episodes, parts)):
        rng, lengths = np.random.default_rng(number), np.array([each for each, _ in chosen])
        rows = {"step": int(lengths.sum()), "episode": len(chosen)}
        values = {each.name: _random(rng, each, rows[each.per]) for each in schema.fields}
        values |= change(values, lengths)
        steps = {name: values.pop(name) for name in schema.names("step")}
        columns = _columns(chosen, first, steps["reward"]) | further(number, len(chosen))
        store.write_part(f"part-{number}", steps, columns, values)
        first += len(episodes)
    return store


def _random(rng: np.random.Generator, field: Field, rows: int) -> np.ndarray:
    shape = (rows, *field.shape)
    if np.dtype(field.dtype).kind == "f":
        return rng.normal(size=shape).astype(field.dtype)
    return rng.integers(0, 2 if field.dtype == "bool" else 100, shape).astype(field.dtype)


def plain_store(
    path: Path, episodes: Sequence[Episode], parts: int = 2, further: Sequence[Field] = ()
) -> Store:
    """Observation, action, reward, integers, float64, the final observation, and further fields."""
    fields = (
        Field("obs", (5,), unit="rad", slices={"gravity": (0, 3), "command": (3, 5)}),
        Field("action", (2,)),
        Field("reward"),
        Field("info_qpos", (3,), "float64"),
        Field("info_contact", (4,), "int8"),
        Field("final_obs", (5,), per="episode"),
        *further,
    )
    schema = Schema(fields, 0.02, "aliengo", {"kept": [1, "two"]})
    return make_store(path, schema, episodes, parts)


def _shares(episodes: Sequence[Episode], parts: int) -> list[Sequence[Episode]]:
    cuts = np.linspace(0, len(episodes), parts + 1).astype(int)
    return [episodes[a:b] for a, b in pairwise(cuts) if b > a]


Change = Callable[[Path], object]
"""Changes an export in place."""


@dataclass(frozen=True)
class Case:
    """What a format is tried with.

    Attributes:
        make: a store of the given episodes that the format can hold.
        fields: that come back bit for bit; columns: of the catalog, None for all.
        schema: whether the schema comes back too.
        options: of the export.
        variants: further cases of the format, by what tells them apart.
        spoil: makes one number of an export not finite.
        damages: of an export, which the format still recognises; of "half" no format need.
        links: files and sub-folders of an export that may not lie elsewhere.
        has_notes: whether an export has any to leave out.
        required: of an HDF5 format, the arrays without which nothing is imported, as a pattern.
        notes: of an HDF5 format, where its notes have the catalog; empty for no such place.
        circles: whether its HDF5 may have hard links.
    """

    make: Callable[[Path, Sequence[Episode]], Store]
    fields: tuple[str, ...]
    columns: tuple[str, ...] | None = None
    schema: bool = True
    options: Mapping[str, Any] = field(default_factory=dict)
    variants: Mapping[str, "Case"] = field(default_factory=dict)
    spoil: Change = lambda source: None
    damages: Mapping[str, Change] = field(default_factory=dict)
    links: tuple[str, ...] = ()
    has_notes: bool = True
    required: str = ""
    notes: str = ""
    circles: bool = True


PLAIN_FIELDS = ("obs", "action", "reward", "info_qpos", "info_contact", "final_obs")


def halved(pattern: str = "") -> Change:
    """Take the second half off the source, or off the first file that matches."""

    def damage(source: Path) -> None:
        path = sorted(source.glob(pattern))[0] if pattern else source
        content = path.read_bytes()
        path.write_bytes(content[: len(content) // 2])

    return damage


def gone(pattern: str) -> Change:
    """Remove a file or folder of the source."""

    def damage(source: Path) -> None:
        for path in sorted(source.glob(pattern)):
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    return damage


def without(*keys: str) -> Change:
    """Remove arrays or groups of an HDF5 file, or of the first in a folder: one for each key."""

    def damage(source: Path) -> None:
        import h5py

        path = sorted(source.glob("*.hdf5"))[0] if source.is_dir() else source
        with h5py.File(path, "a") as file:
            names: list[str] = []
            file.visit(names.append)
            for key in keys:
                del file[next(name for name in names if name.endswith(key))]

    return damage


def text(pattern: str, content: str) -> Change:
    """Replace a file of the source."""
    return lambda source: sorted(source.glob(pattern))[0].write_text(content)


def spoil_hdf5(path: Path, key: str, row: int = 0) -> None:
    """Make a number of an array of an HDF5 file not finite."""
    import h5py

    with h5py.File(path, "r+") as file:
        file[key][row] = np.nan  # pyright: ignore[reportIndexIssue]


def assert_equal(case: Case, before: Selection, after: Selection) -> None:
    """Everything that the case promises is the same, bit for bit, in the same order."""
    for name in case.fields:
        first, second = before.read(name), after.read(name)
        assert first.dtype == second.dtype
        assert first.tobytes() == second.tobytes(), name
    rows, again = before.episodes(), after.episodes()
    names = case.columns or [n for n in rows.column_names if n not in ("part", "start")]
    for name in names:
        assert rows.column(name).to_pylist() == again.column(name).to_pylist(), name
    if case.schema:
        assert after.store.schema == before.store.schema


def assert_notes_hold(
    name: str, edit: Change, message: str, without_notes: Change, remedy: str, folder: Path
) -> None:
    """An export edited beside its notes is refused with the `remedy`, and imported without them."""
    export_selection(name, small_store(folder / "store").select(), folder / "out")
    edit(folder / "out")
    with pytest.raises(DatasetError, match=message) as error:
        import_source(name, folder / "out", folder / "again")
    assert re.search(remedy, str(error.value))
    assert "\n" not in str(error.value)
    assert sorted(path.name for path in folder.iterdir()) == ["out", "store"]
    without_notes(folder / "out")
    import_source(name, folder / "out", folder / "again")
    selection = open_store(folder / "again").select()
    rewards = np.split(selection.read("reward").astype(float), np.cumsum(selection.lengths)[:-1])
    returns = selection.episodes()["return"].to_pylist()
    np.testing.assert_allclose(returns, [episode.sum() for episode in rewards], rtol=1e-12)


def relabel_hdf5(key: str, path: Path) -> None:
    """All rewards of an HDF5 file become 1, or no episode of it failed."""
    import h5py

    with h5py.File(path, "a") as file:
        changed: list[Any] = []
        file.visititems(lambda name, item: changed.append(item) if name.endswith(key) else None)
        for item in changed:
            item[...] = key == "rewards"


RETURN_DIFFERS = "return of episode 0 is .* in the notes, but "
FAILURE_DIFFERS = "terminated of episode 0 is 1 in"
