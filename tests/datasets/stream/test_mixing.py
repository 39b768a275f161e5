"""Mixtures: shares of an epoch, evenly spread visits, and the stream's laws unchanged."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gaitforge.datasets import DatasetError, Selection, open_store
from gaitforge.datasets.stream.materialise import Mixture, equal_shares
from tests.datasets.making import small_store, write_small_part
from tests.datasets.streaming import Batch, same_batches, steps_of, windows_of


@pytest.fixture(scope="module")
def selection(tmp_path_factory: pytest.TempPathFactory) -> Selection:
    """150 episodes of 20 steps, a third each of stand, run and crawl."""
    return small_store(tmp_path_factory.mktemp("mix") / "s", [[20] * 50] * 3).select()


@pytest.fixture(scope="module")
def mixture(selection: Selection) -> Mixture:
    few = {"stand": selection.where("skill = 'stand' and episode < 20")}
    rest = {name: selection.where(f"skill = '{name}'") for name in ("run", "crawl")}
    return Mixture(few | rest, {"stand": 2.0, "run": 1.0, "crawl": 1.0})


@settings(max_examples=12)
@given(
    weights=st.tuples(st.floats(0.05, 20), st.floats(0.05, 20), st.floats(0.05, 20)),
    seed=st.integers(0, 2**40),
    epochs=st.integers(1, 6),
)
def test_visits_are_even_over_episodes_and_epochs(
    selection: Selection, weights: tuple[float, float, float], seed: int, epochs: int
) -> None:
    names = ("stand", "run", "crawl")
    parts = {name: selection.where(f"skill = '{name}'") for name in names}
    mixture = Mixture(parts, dict(zip(names, weights, strict=True)))
    visits = np.array([mixture.visits(seed, epoch) for epoch in range(epochs)])
    skills = np.array(mixture.selection.episodes().column("skill").to_pylist())
    for name in names:
        chosen = visits[:, skills == name]
        rate = mixture.shares[name] * selection.steps / parts[name].steps
        assert set(chosen.flat) <= {int(rate), int(rate) + 1}
        total = chosen.sum(axis=0)
        assert np.abs(total - rate * epochs).max() < 1 + 1e-9
        assert np.abs(chosen.sum(axis=1) - rate * chosen.shape[1]).max() <= 1 + 1e-9


def test_an_epoch_has_the_stated_shares(mixture: Mixture) -> None:
    skills = mixture.selection.episodes().column("skill").to_pylist()
    steps: Counter[str] = Counter()
    for batch in mixture.windows(8, 6, epoch=3):
        for episode, _, length in windows_of([batch]):
            steps[skills[episode]] += length
    total = sum(steps.values())
    assert abs(total - mixture.selection.steps) <= 3 * 20
    assert steps["stand"] / total == pytest.approx(0.5, abs=0.02)
    assert steps["run"] / total == pytest.approx(0.25, abs=0.02)


def test_a_visit_covers_each_step_once(mixture: Mixture) -> None:
    for seed, epoch in ((0, 0), (5, 2)):
        visits = mixture.visits(seed, epoch)
        seen = steps_of(mixture.windows(8, 6, seed=seed, epoch=epoch, pool_steps=1500))
        expected = {
            (episode, step): int(count)
            for episode, count in enumerate(visits)
            for step in range(20)
            if count
        }
        assert seen == expected


def test_visits_of_one_episode_are_cut_at_other_phases(mixture: Mixture) -> None:
    starts = Counter(windows_of(mixture.windows(8, 6)))
    assert max(starts.values()) < mixture.visits(0, 0).max()


def test_equal_shares_a_skill(selection: Selection) -> None:
    uneven = selection.where("skill <> 'run' or episode < 30")
    mixture = equal_shares(uneven, "skill")
    assert mixture.shares == {name: pytest.approx(1 / 3) for name in ("crawl", "run", "stand")}
    skills = uneven.episodes().column("skill").to_pylist()
    visits = mixture.visits(1, 0)
    counts = {
        name: sum(v for v, s in zip(visits, skills, strict=True) if s == name)
        for name in mixture.shares
    }
    assert max(counts.values()) - min(counts.values()) <= 2
    with pytest.raises(DatasetError, match="unknown column 'gait'"):
        equal_shares(selection, "gait")


@pytest.mark.parametrize("ranks", [(1, 1), (4, 2), (2, 3)])
def test_ranks_and_resuming_of_a_mixture(mixture: Mixture, ranks: tuple[int, int]) -> None:
    before, after = ranks
    common: dict[str, Any] = {"window_len": 8, "seed": 4, "epoch": 1, "pool_steps": 1500}
    common["prefix_len"] = before
    whole = Counter(windows_of(mixture.windows(workers=0, **common)))
    seen: list[Batch] = []
    state = {}
    for rank in range(before):
        stream = mixture.windows(batch_size=3, rank=rank, world_size=before, **common)
        iteration = iter(stream)
        seen += [next(iteration) for _ in range(5)]
        state = stream.state_dict()
    for rank in range(after):
        stream = mixture.windows(batch_size=7, rank=rank, world_size=after, **common)
        stream.load_state_dict(state)
        seen += list(stream)
    assert Counter(windows_of(seen)) == whole


def test_a_mixture_streams_from_a_copy(mixture: Mixture, tmp_path: Path) -> None:
    copy = mixture.selection.materialise(tmp_path)
    settings: dict[str, Any] = {"window_len": 8, "batch_size": 6, "pool_steps": 1500}
    from_copy = mixture.windows(materialised=copy, **settings)
    assert same_batches(from_copy, mixture.windows(**settings))
    other = mixture.selection.where("episode < 50").materialise(tmp_path)
    with pytest.raises(DatasetError, match="a copy of another selection"):
        mixture.windows(materialised=other)


def test_states_of_other_mixtures_are_refused(mixture: Mixture, selection: Selection) -> None:
    state = mixture.windows(8, 6).state_dict()
    same = Mixture({"all": mixture.selection})
    for other in (same.windows(8, 6), mixture.selection.windows(8, 6)):
        with pytest.raises(DatasetError, match="the stream's state has selection="):
            other.load_state_dict(state)
    whole = Mixture({"all": selection})
    assert set(whole.visits(0, 7)) == {1}


def test_overlapping_selections_add_up(selection: Selection) -> None:
    low = selection.where("episode < 75")
    mixture = Mixture({"all": selection, "low": low}, {"all": 1, "low": 1})
    visits = np.sum([mixture.visits(0, epoch) for epoch in range(10)], axis=0)
    assert set(visits[:75]) == {15}
    assert set(visits[75:]) == {5}


def test_what_cannot_be_mixed_is_refused(selection: Selection, tmp_path: Path) -> None:
    other = small_store(tmp_path / "s", [[20] * 6])
    early = other.select()
    write_small_part(other, "part-500", (5,), 300)
    run = {"run": selection.where("skill = 'run'")}
    cases: list[tuple[dict[str, Selection], dict[str, float] | None, str]] = [
        ({}, None, "at least one selection"),
        (run, {"walk": 1.0}, "weights are for walk; there must be one for each of run"),
        (run, {"run": 0.0}, "must be positive and finite, not 0.0"),
        (run, {"run": float("nan")}, "must be positive and finite"),
        (run | {"none": selection.where("length > 99")}, None, "selection none is empty"),
        (run | {"far": early}, None, "a mixture takes selections of one store"),
        ({"a": early, "b": open_store(other.path).select()}, None, "from one catalog"),
    ]
    for selections, weights, message in cases:
        with pytest.raises(DatasetError, match=message):
            Mixture(selections, weights)
