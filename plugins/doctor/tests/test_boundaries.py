"""The doctor finds joined episodes and what autoreset leaves; the printed commands mend them."""

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gaitforge.common.errors import DatasetError
from gaitforge.datasets import open_store
from gaitforge.datasets.edits.split import cut_episodes
from tests.pipeline.command_line import Run

h5py = pytest.importorskip("h5py")
pytest.importorskip("gymnasium")

KEYS = ("observations", "actions", "rewards", "terminals", "timeouts", "next_observations")
NAMES = {"joined-episodes", "ignored-action", "final-observation"}
Row = list[Any]


def _episodes(env_id: str, count: int) -> Iterator[list[Row]]:
    """Rows of episodes of an environment under random actions, as `KEYS` orders them."""
    import gymnasium

    env = gymnasium.make(env_id, max_episode_steps=60)
    env.action_space.seed(0)
    for number in range(count):
        obs, _ = env.reset(seed=number)
        rows: list[Row] = []
        while not rows or not (rows[-1][3] or rows[-1][4]):
            action = env.action_space.sample()
            following, reward, terminated, truncated, _ = env.step(action)
            rows.append([obs, np.atleast_1d(action), reward, terminated, truncated, following])
            obs = following
        yield rows


def _recorded(env_id: str, mode: str, count: int = 30) -> list[Row]:
    """The rows that one of a vector environment's copies records in an autoreset mode."""
    episodes = list(_episodes(env_id, count))
    rows: list[Row] = []
    for number, episode in enumerate(episodes):
        start = episodes[(number + 1) % count][0][0]
        if mode == "same_step":
            episode[-1][5] = start
        rows += episode
        if mode == "next_step" and number < count - 1:
            last = episode[-1]
            rows.append([last[5], last[1], 0.0, False, False, start])
    return rows


def _write(path: Path, rows: list[Row], *, following: bool = True, every: int = 1) -> None:
    """A D4RL file, with a mark at each `every`-th end only."""
    columns = [np.array([row[k] for row in rows]) for k in range(len(KEYS))]
    ended, cut = columns[3].astype(bool), columns[4].astype(bool)
    if every > 1:
        ends = np.flatnonzero(ended | cut)[every - 1 :: every]
        ended, cut = np.zeros_like(ended), np.isin(np.arange(len(rows)), ends)
    columns[3:5] = ended, cut
    with h5py.File(path, "w") as file:
        for key, values in zip(KEYS, columns, strict=True):
            if following or key != KEYS[5]:
                kind = bool if key in KEYS[3:5] else np.float32
                file[key] = values.astype(kind)


def _found(run: Run, source: Path | str, *more: str) -> list[dict[str, Any]]:
    record = json.loads(run("doctor", source, "--json", *more).out)
    return [each for each in record["findings"] if each["name"] in NAMES]


def _mended(run: Run, finding: dict[str, Any]) -> str:
    """Run the finding's commands; the store that they leave."""
    words: list[str] = []
    for command in finding["commands"]:
        words = shlex.split(command)
        outcome = run(*words[1:])
        assert outcome.code == 0, outcome.err
    return words[4] if words[2] == "cut" else words[3]


ENVIRONMENTS = ("Pendulum-v1", "CartPole-v1", "MountainCarContinuous-v0")


@pytest.mark.parametrize("env_id", ENVIRONMENTS)
def test_recordings_of_single_environments_have_no_finding(
    run: Run, tmp_path: Path, env_id: str
) -> None:
    """Nor have pieces of one long recording, whose ends and starts meet as well."""
    rows = [row for episode in _episodes(env_id, 30) for row in episode]
    for name, following in (("a", True), ("b", False)):
        _write(tmp_path / f"{name}.hdf5", rows, following=following)
        assert _found(run, tmp_path / f"{name}.hdf5", "--format", "d4rl") == []
    for number, row in enumerate(rows):
        row[3], row[4] = False, row[3] or row[4] or number % 20 == 19
    _write(tmp_path / "pieces.hdf5", rows)
    assert _found(run, tmp_path / "pieces.hdf5", "--format", "d4rl") == []


AUTORESET = [("next_step", True), ("next_step", False), ("same_step", True)]
"""A vector environment's mode, and whether the file has the next observations."""
CASES = [("d4rl", env_id, *rows) for env_id in ENVIRONMENTS[:2] for rows in AUTORESET]
CASES += [
    (name, ENVIRONMENTS[(k + number) % 2], *rows)
    for number, name in enumerate(("minari", "lerobot", "robomimic"))
    for k, rows in enumerate(AUTORESET)
]
"""All with D4RL's files, as they are recorded; the others have one of the environments, in turn."""


@pytest.mark.slow
@pytest.mark.parametrize(("name", "env_id", "mode", "following"), CASES)
def test_rows_of_autoreset_are_found_and_trimmed(
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    env_id: str,
    mode: str,
    following: bool,
) -> None:
    if name == "minari":
        pytest.importorskip("minari")
    monkeypatch.chdir(tmp_path)
    _write(tmp_path / "flat.hdf5", _recorded(env_id, mode), following=following)
    source = "flat.hdf5"
    if name != "d4rl":
        source = "out.hdf5" if name == "robomimic" else "out"
        assert run("import", "d4rl", "flat.hdf5", "flat.zarr").code == 0
        assert run("export", "flat.zarr", name, source, "--set", "notes=false").code == 0
    findings = _found(run, source, "--format", name)
    if mode == "same_step" and name == "lerobot":
        assert findings == [], "it keeps no final observation"
        return
    [finding] = findings
    expected = "ignored-action" if mode == "next_step" else "final-observation"
    assert finding["name"] == expected
    assert finding["count"] >= 29
    assert "autoreset" in finding["text"]
    store = _mended(run, finding)
    assert _found(run, store) == []
    if mode == "next_step":
        starts = open_store(store).select()
        first = starts.read("reward")[np.cumsum(starts.lengths) - starts.lengths]
        assert (first != 0).all(), "the row without a reward is gone"


@pytest.mark.parametrize("following", [True, False])
@pytest.mark.parametrize("env_id", ["Pendulum-v1", "CartPole-v1"])
def test_joined_episodes_are_found_and_cut(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, env_id: str, following: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    episodes = list(_episodes(env_id, 24))
    rows = [row for episode in episodes for row in episode]
    _write(tmp_path / "joined.hdf5", rows, following=False, every=8)
    if following:  # a store with final observations
        assert run("import", "d4rl", "joined.hdf5", "first.zarr").code == 0
        assert run("export", "first.zarr", "minari", "joined", "--set", "notes=false").code == 0
    source = "joined" if following else "joined.hdf5"
    [finding] = _found(run, source)
    assert finding["count"] == 3
    lengths = [len(episode) for episode in episodes]
    ends = {int(each) for k in range(3) for each in np.cumsum(lengths[8 * k : 8 * k + 7])}
    seams = {step for own in finding["seams"].values() for step in own}
    assert seams <= ends, "no seam where there is none"
    assert len(seams) > 0.8 * len(ends)
    store = _mended(run, finding)
    assert _found(run, store) == []
    whole, pieces = open_store("joined.zarr").select(), open_store(store).select()
    cut = sum(map(len, finding["seams"].values()))
    assert len(pieces) == 3 + cut
    given_up = cut if following else 0  # their observations are the final ones
    assert pieces.steps == whole.steps - given_up
    if not following:
        for name in ("obs", "action", "reward"):
            assert np.array_equal(pieces.read(name), whole.read(name))
    table = pieces.episodes()
    summed = np.add.reduceat(
        pieces.read("reward").astype(float), np.cumsum(pieces.lengths) - pieces.lengths
    )
    assert np.allclose(table.column("return").to_numpy(), summed)
    assert sum(table.column("truncated").to_pylist()) == 3
    assert len(set(table.column("episode").to_pylist())) == len(pieces)


def test_a_cut_is_refused_where_there_is_no_seam(run: Run, tmp_path: Path) -> None:
    rows = [row for episode in _episodes("Pendulum-v1", 4) for row in episode]
    _write(tmp_path / "a.hdf5", rows)
    assert run("import", "d4rl", tmp_path / "a.hdf5", tmp_path / "a.zarr").code == 0
    out = tmp_path / "b.zarr"
    refused = run("dataset", "cut", tmp_path / "a.zarr", out)
    assert refused.code == 2
    assert "a.zarr to cut" in refused.err
    store = open_store(tmp_path / "a.zarr")
    [first, *_] = store.select().episodes().column("episode").to_pylist()
    for cuts in ({1: [3]}, {first: [0]}, {first: [60]}, {first: [30, 30]}, {first: [1]}):
        with pytest.raises(DatasetError, match=r"no episode 1 in|cannot be cut at"):
            cut_episodes(store, out, cuts)
    assert not out.exists()
