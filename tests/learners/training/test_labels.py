"""The labels of conditioned policies: their laws, what is hidden, and the same in control."""

import copy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from gaitforge.datasets import Selection, open_store
from gaitforge.learners.checkpoint import load_policy, policy_card
from gaitforge.learners.control.control import LearnedPolicy
from gaitforge.learners.export.export import PolicyExportOptions, export_policy
from gaitforge.learners.export.onnx_policy import OnnxPolicy
from gaitforge.learners.models.registry import preset
from gaitforge.learners.policy_network import PolicyNetwork
from gaitforge.learners.tokens import LABELS, Condition
from gaitforge.learners.training.batches import (
    ADVANTAGE_BINS,
    CELL,
    Labels,
    driver_and_share,
    label_scale,
    shown_windows,
)
from gaitforge.learners.training.config import TrainConfig
from gaitforge.learners.training.train import held_out_error, split_episodes, train
from tests.learners.control.exporting import FACTS
from tests.learners.making import SHORT, SMALL, Seen, make_policy, make_selection

SCALE, ZERO = 30.0, -2.0
SEVERAL = Condition(("return_to_go", "driver"), hidden=0.3, scale=2.0)


@pytest.fixture(scope="module")
def selection(tmp_path_factory: pytest.TempPathFactory) -> Selection:
    return make_selection(tmp_path_factory.mktemp("labels") / "walks.zarr", 60)


def labelled(selection: Selection, *names: str) -> dict[str, np.ndarray]:
    """Labels of every step, and the rewards that remain, from windows after a prefix."""
    condition = Condition(names)
    policy = make_policy(tokens="return", return_scale=SCALE, return_zero=ZERO, condition=condition)
    stream = selection.windows(9, 64, prefix_len=4, workers=0, return_to_go=True)
    labels, columns = Labels(policy, selection, 4), []
    for batch in stream:
        condition = labels.of_batch(batch)
        columns.append([batch["episode"], batch["offset"], batch["mask"], batch["return_to_go"]])
        columns[-1] += [condition[..., index] for index in range(len(names))]
    episode, offset, mask, remaining, *labels_of_steps = map(torch.cat, zip(*columns, strict=True))
    step = (offset - offset.clamp(max=4))[:, None] + torch.arange(mask.shape[1])
    flat = {"remaining": remaining, "step": step, "episode": episode[:, None].expand_as(step)}
    flat |= dict(zip(names, labels_of_steps, strict=True))
    return {name: value[mask].numpy() for name, value in flat.items()}


def test_labels_of_returns_say_what_their_formulas_say(selection: Selection) -> None:
    steps = labelled(selection, "return_to_go", "return", "rate")
    total = selection.episodes("return").column("return").to_numpy()
    np.testing.assert_allclose(
        steps["return_to_go"], (steps["remaining"] - ZERO) / SCALE, rtol=1e-5
    )
    np.testing.assert_allclose(steps["return"], (total[steps["episode"]] - ZERO) / SCALE, rtol=1e-5)
    first = steps["step"] == 0
    for name in ("return_to_go", "rate"):  # before an episode all of them know its return
        np.testing.assert_allclose(steps[name][first], steps["return"][first], rtol=1e-4)
    left = 1 - steps["step"] / selection.lengths.max()
    rewards = (steps["rate"] * SCALE + ZERO) * left
    np.testing.assert_allclose(rewards, steps["remaining"], rtol=1e-3, atol=1e-3)


def test_an_advantage_is_a_rank_among_all_steps(selection: Selection) -> None:
    ranks = labelled(selection, "advantage")["advantage"]
    values, counts = np.unique(ranks.round(6), return_counts=True)
    np.testing.assert_allclose(values, np.linspace(0, 1, ADVANTAGE_BINS), atol=1e-5)
    assert counts.max() - counts.min() <= 2


@given(
    st.lists(
        st.tuples(
            st.sampled_from("ab"),
            st.sampled_from(["flat", "stairs"]),
            st.sampled_from([0.0, 0.5, None]),
            st.floats(0.1, 10.0),
        ),
        min_size=1,
        max_size=30,
    )
)
@example([("b", "flat", 0.0, 0.5), ("a", "stairs", 0.0, 0.5)])
def test_shares_and_drivers(rows: list[tuple[str, str, float | None, float]]) -> None:
    policy, terrain, driven, total = (list(column) for column in zip(*rows, strict=True))
    noise = [0.25 if each is None else 0.0 for each in driven]
    table = pa.table({"expert": policy, "terrain": terrain, "action_noise": noise})
    table = table.append_column("policy_share", pa.array(driven, pa.float64()))
    driver, share = driver_and_share(table, np.array(total), 0.0, 1.0)
    names, cells, noises, totals = (np.array(each) for each in (policy, terrain, noise, total))
    noises = noises + np.array([each or 0.0 for each in driven])
    clean = np.array(
        [n == noises[names == name].min() for name, n in zip(names, noises, strict=True)]
    )
    for name in set(policy):
        own = names == name
        assert driver[own] == pytest.approx(share[own & clean].mean(), rel=1e-4)
    best = max(sorted(set(policy)), key=lambda name: totals[clean & (names == name)].mean())
    measured = clean & (names == best)
    assert measured.any()
    for cell in set(cells[measured]):  # where the best policy acts, its own mean share is 1
        here = (cells == cell) & measured
        assert share[here].mean() == pytest.approx(1.0, rel=1e-4)
        whole = cells == cell  # and all others' shares are of its mean return
        assert share[whole] == pytest.approx(totals[whole] / totals[here].mean(), rel=1e-4)
    elsewhere = ~np.isin(cells, cells[measured])  # the expert's return, which is 1 here
    assert share[elsewhere] == pytest.approx(totals[elsewhere], rel=1e-4)


@given(st.floats(0.0, 0.9), st.integers(0, 5), st.integers(0, 3))
def test_what_a_window_hides_depends_on_the_window_alone(
    hidden: float, seed: int, epoch: int
) -> None:
    rows = {"episode": torch.arange(4000) // 40, "offset": torch.arange(4000) % 40}
    shown = shown_windows("labels", hidden, rows, seed, epoch)
    picked = torch.randperm(4000)[:100]
    some = {name: value[picked] for name, value in rows.items()}
    assert torch.equal(shown_windows("labels", hidden, some, seed, epoch), shown[picked])
    assert abs(float((~shown).float().mean()) - hidden) < 0.05
    if hidden > 0.1:
        assert not torch.equal(shown, shown_windows("action", hidden, rows, seed, epoch))
        assert not torch.equal(shown, shown_windows("labels", hidden, rows, seed, epoch + 1))


@pytest.mark.parametrize("model", ["fcnet", "bot", "body-mlp", "mlp"])
def test_a_run_with_all_labels_and_all_that_can_be_hidden(
    model: str, selection: Selection, tmp_path: Path
) -> None:
    settings = SMALL.get(model, {"mlp": {"hidden_dim": 8}}.get(model, {"feedforward_dim": 8}))
    config = replace(
        SHORT,
        model=model,
        model_overrides=settings,
        objective="return",
        steps=4,
        condition=LABELS,
        condition_hidden=0.3,
        condition_scale=3.0,
        last_action_hidden=0.3,
        history_hidden=0.3,
    )
    train(config, selection, tmp_path / "run")
    policy = load_policy(tmp_path / "run")
    assert policy.condition == Condition(LABELS, 0.3, 3.0)
    episodes = split_episodes(config, selection)
    assert episodes.held_out is not None
    learned = episodes.train
    error = held_out_error(policy, episodes.held_out).mse
    assert error == pytest.approx(error_by_hand(policy, episodes.held_out, learned), rel=1e-4)
    few = episodes.train.with_rows(episodes.train.rows[::5])
    wanted = error_by_hand(policy, few, learned)
    assert held_out_error(policy, few).mse == pytest.approx(wanted, rel=1e-4)


def error_by_hand(policy: PolicyNetwork, selection: Selection, learned: Selection) -> float:
    """The mean squared error of the policy's actions, episode by episode in control steps."""
    labels, total = Labels(policy, selection, 0, learned), 0.0
    stream = selection.windows(int(selection.lengths.max()), 1, return_to_go=True)
    for batch in stream:
        condition, state = labels.of_batch(batch), policy.init_state(1)
        for step in range(int(batch["mask"].sum())):
            action, state = policy.step(batch["obs"][:, step], state, condition[:, step])
            gap = (action - batch["action"][:, step]) / policy.action_normaliser.std
            total += float(gap.square().mean())
    return total / selection.steps


def test_labels_of_other_episodes_are_measured_by_those_of_the_training(
    several: Selection, tmp_path: Path
) -> None:
    config = replace(SHORT, model="mlp", model_overrides={"hidden_dim": 8}, objective="return")
    config = replace(config, steps=4, condition=LABELS, checkpoint_every=2, split_seed=2)
    train(config, several, tmp_path / "run")
    policy, episodes = load_policy(tmp_path / "run"), split_episodes(config, several)
    assert episodes.held_out is not None
    scale, table = label_scale(policy, episodes.train), episodes.train.episodes()
    assert policy.label_scale is not None
    assert policy.label_scale.to_json() == scale.to_json()
    assert scale.horizon == episodes.train.lengths.max() != episodes.held_out.lengths.max()
    labels = dict(zip(LABELS, labelled_by(policy, episodes.held_out).T, strict=True))
    alone = replaced_scale(policy, episodes.held_out)
    for name, other in zip(LABELS, labelled_by(alone, episodes.held_out).T, strict=True):
        is_same = np.allclose(labels[name], other, atol=1e-6)
        assert is_same == (name in ("return_to_go", "return"))
    cells, held_cells = (
        list(zip(*(rows[name].to_pylist() for name in CELL), strict=True))
        for rows in (table, episodes.held_out.episodes())
    )
    totals, noise = (table[name].to_numpy() for name in ("return", "action_noise"))
    weak = np.array([quality == "weak" for quality in table["quality"].to_pylist()])
    best = max((weak, ~weak), key=lambda driver: totals[driver & (noise == 0.0)].mean())
    zero, expert = policy.return_at(0.0), policy.return_at(1.0)
    held = episodes.held_out.episodes()["return"].to_numpy()
    last = np.cumsum(episodes.held_out.lengths) - 1
    for cell, total, share in zip(held_cells, held, labels["share"][last], strict=True):
        own = [k for k, other in enumerate(cells) if other == cell and best[k] and noise[k] == 0.0]
        reference = totals[own].mean() if own else expert
        assert share == pytest.approx((total - zero) / (reference - zero), rel=1e-4)


def replaced_scale(policy: PolicyNetwork, selection: Selection) -> PolicyNetwork:
    """A copy of the policy whose labels are measured by other episodes."""
    other = copy.copy(policy)
    other.label_scale = label_scale(policy, selection)
    return other


def labelled_by(policy: PolicyNetwork, selection: Selection) -> np.ndarray:
    """(steps, labels) of a selection in order."""
    labels, rows = Labels(policy, selection, 0), {}
    stream = selection.windows(int(selection.lengths.max()), 4, return_to_go=True)
    for batch in stream:
        values = labels.of_batch(batch)
        for row, episode in enumerate(batch["episode"].tolist()):
            rows[episode] = values[row][batch["mask"][row]].numpy()
    return np.concatenate([rows[episode] for episode in range(len(selection))])


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Selection:
    """Episodes of two policies in several cells, half of them with noise."""
    made = make_selection(tmp_path_factory.mktemp("several") / "walks.zarr", 60, seed=5)
    made.annotate({"action_noise": 0.0})
    for column, value, rows in (
        ("action_noise", 0.5, slice(1, None, 2)),
        ("quality", "weak", slice(None, None, 3)),
    ):
        made = open_store(made.store.path).select()
        made.with_rows(made.rows[rows]).annotate({column: value})
    return open_store(made.store.path).select()


def seen(robots: int, steps: int) -> list[Seen]:
    rng = np.random.default_rng(1)
    return [
        Seen(rng.normal(size=(robots, 70)).astype(np.float32), rng.uniform(0, 1, robots))
        for _ in range(steps)
    ]


@pytest.mark.parametrize("model", ["fcnet", "bot"])
def test_guidance_scales_what_the_condition_changes(model: str) -> None:
    network = make_policy(model, "return", return_scale=SCALE, condition=SEVERAL)
    factors = (1.0, 0.0, 3.0)
    policies = [LearnedPolicy(network, 3, return_target=0.5, guidance=w) for w in factors]
    for number, each in enumerate(seen(3, 20)):
        if number in (7, 11):
            for policy in policies:
                policy.reset(np.array([0, 2]))
        conditioned, plain, stronger = (policy.act(each) for policy in policies)
        np.testing.assert_allclose(stronger, plain + 3.0 * (conditioned - plain), atol=1e-4)
        changed = np.abs(conditioned - plain).max()
        assert changed > 1e-5


@pytest.mark.slow
def test_an_export_takes_return_to_go_and_target(tmp_path: Path) -> None:
    network = make_policy(tokens="return", return_scale=SCALE, return_zero=ZERO, condition=SEVERAL)
    card = policy_card(network.eval(), preset("fcnet", SMALL["fcnet"])) | {"parameters": 1}
    export_policy(
        network, card, FACTS, tmp_path / "out", PolicyExportOptions(("onnx",), batch_size=2)
    )
    exported = OnnxPolicy(tmp_path / "out", 3, return_target=0.6)
    assert exported.description["inputs"][:3] == ["observation", "return_to_go", "target"]
    learned = LearnedPolicy(network, 3, return_target=0.6)
    for each in seen(3, 12):
        np.testing.assert_allclose(exported.act(each), learned.act(each), atol=5e-5)


def test_what_makes_no_sense_is_refused() -> None:
    for names in ((), ("return", "return"), ("luck",)):
        with pytest.raises(ValueError, match="each once, from"):
            TrainConfig(condition=names)
    with pytest.raises(ValueError, match="condition_hidden"):
        TrainConfig(condition_hidden=1.0)
    with pytest.raises(ValueError, match="condition_hidden above 0"):
        LearnedPolicy(make_policy(tokens="return"), 1, guidance=2.0)
