"""Offline reinforcement learning: laws that hold for every objective, and the algorithms' own."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.utils import parameters_to_vector

from gaitforge.common.interrupts import Stopped
from gaitforge.datasets import Field, Schema, Selection, Store
from gaitforge.learners.checkpoint import load_policy, read_checkpoint
from gaitforge.learners.control.control import compiled_step
from gaitforge.learners.control.step_modules import PolicyStep
from gaitforge.learners.training.batches import TrainingBatches
from gaitforge.learners.training.building import build_policy, build_values
from gaitforge.learners.training.config import TrainConfig
from gaitforge.learners.training.distributed import Ranks
from gaitforge.learners.training.objectives import OBJECTIVES
from gaitforge.learners.training.train import train
from gaitforge.learners.training.update import Updater
from gaitforge.plugins.offline_rl.awr import AWR, AWRSettings
from gaitforge.plugins.offline_rl.bear import BEAR
from gaitforge.plugins.offline_rl.td3_bc import TD3BC
from gaitforge.plugins.offline_rl.value_learner import ValueLearner
from tests.datasets.making import part_input
from tests.learners.making import OBS_SLICES, SHORT, SMALL, make_selection
from tests.learners.training.test_resume import after, ctrl_c

VALUED = [name for name, objective in OBJECTIVES.items() if objective.values]
SMALL_VALUES = {"hidden": [8, 8]}
LEARNED = [(name, number % 2 == 0) for number, name in enumerate(OBJECTIVES)]
LEARNED += [("gaussian-bc", True), ("bc", False), ("iql", True)]
"""Objectives, with the executed actions and the clean ones in turn; one of each kind with both."""


@pytest.fixture(scope="module")
def selection(tmp_path_factory: pytest.TempPathFactory) -> Selection:
    return make_selection(tmp_path_factory.mktemp("store") / "walks.zarr")


@pytest.fixture(params=VALUED)
def config(request: pytest.FixtureRequest) -> TrainConfig:
    return replace(SHORT, objective=request.param, values=SMALL_VALUES)


def updater_of(config: TrainConfig, selection: Selection) -> Updater:
    config = config.settled(None)
    policy, _ = build_policy(config, selection)
    return Updater(policy, config, Ranks(), build_values(config, policy, selection))


def gradients(updater: Updater, of: str) -> dict[str, torch.Tensor | None]:
    module = updater.policy if of == "policy" else updater.values
    assert module is not None
    return {name: each.grad for name, each in module.named_parameters() if each.requires_grad}


@pytest.mark.slow
def test_a_stopped_run_ends_as_one_that_was_not(
    config: TrainConfig, selection: Selection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gaitforge.learners.training.trainer.PROGRESS_PERIOD_S", 0.0)
    train(config, selection, tmp_path / "whole")
    with pytest.raises(Stopped):
        train(config, selection, tmp_path / "stopped", after(11, ctrl_c))
    train(config, selection, tmp_path / "stopped")
    whole, stopped = (read_checkpoint(tmp_path / name).tensors for name in ("whole", "stopped"))
    assert whole.keys() == stopped.keys()
    assert any(name.startswith("values.") for name in whole)
    for name, tensor in whole.items():
        assert torch.equal(tensor, stopped[name]), name


def test_half_precision_has_nearly_the_losses(config: TrainConfig, selection: Selection) -> None:
    losses = []
    for precision in ("float32", "bf16"):
        updater = updater_of(replace(config, precision=precision), selection)
        batches = TrainingBatches(config.settled(None), selection, Ranks())
        steps = zip(range(3), batches, strict=False)
        losses.append([updater.step(batch, k, 1e-3).loss for k, (_, batch) in steps])
        batches.stream.close()
    np.testing.assert_allclose(losses[1], losses[0], rtol=0.05)
    assert losses[0] != losses[1]


def test_a_batch_of_nothing_teaches_nothing(config: TrainConfig, selection: Selection) -> None:
    updater = updater_of(config, selection)
    _, batch = next(iter(TrainingBatches(config.settled(None), selection, Ranks())))
    before = {name: each.clone() for name, each in updater.policy.named_parameters()}
    update = updater.step({**batch, "mask": torch.zeros_like(batch["mask"])}, 0, 0.1)
    assert (update.loss, update.valid_steps, update.finite) == (0.0, 0, True)
    for name, each in updater.policy.named_parameters():
        torch.testing.assert_close(each, before[name])


@pytest.fixture(scope="module", params=[True, False], ids=["final", "no final"])
def failing(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Selection:
    """Every second episode fails; the store has the experts' distributions."""
    folder = tmp_path_factory.mktemp("failing")
    stored = {"final_obs": request.param, "failing": True, "expert_std": 0.3}
    return make_selection(folder / "walks.zarr", **stored)


def actions_of(selection: Selection, episode: int, executed: bool) -> np.ndarray:
    """(T, A) the stored actions, or what the next observations show where there is one."""
    arrays, shown = selection.episode(episode), slice(*OBS_SLICES["last_action"])
    actions = arrays["action"].copy()
    if executed:
        actions[:-1] = arrays["obs"][1:, shown]
        if "final_obs" in arrays:
            actions[-1] = arrays["final_obs"][shown]
    return actions


@pytest.mark.parametrize(("objective", "executed"), LEARNED)
def test_all_learn_the_same_actions(objective: str, executed: bool, failing: Selection) -> None:
    """Actions and next actions of every step are the executed ones, or all are the clean ones."""
    config = replace(SHORT, objective=objective, executed_actions=executed, window_len=7)
    batches = TrainingBatches(config.settled(None), failing, Ranks())
    finals, valued = "final_obs" in failing.schema.names(), bool(OBJECTIVES[objective].values)
    failed = failing.episodes()["terminated"].to_pylist()
    name = "action_mean" if objective == "gaussian-bc" and not executed else "action"
    learned = set()
    for _ in range(len(batches.stream)):
        _, batch = next(iter(batches))
        for row, (episode, start) in enumerate(zip(batch["episode"], batch["offset"], strict=True)):
            actions = actions_of(failing, int(episode), executed)
            following = np.concatenate([actions[1:], np.zeros_like(actions[:1])])
            first = max(0, int(start) - batches.stream.config.prefix_len)
            for column in np.flatnonzero(batch["mask"][row]):
                step = first + column
                learned.add((int(episode), step))
                assert np.array_equal(batch[name][row, column], actions[step])
                if valued:
                    assert np.array_equal(batch["next_action"][row, column], following[step])
    batches.stream.close()
    assert learned == {
        (episode, step)
        for episode, length in enumerate(failing.lengths)
        for step in range(length)
        if step < length - 1 or finals or failed[episode] or not valued
    }


@pytest.mark.parametrize("objective", ["bc", "td3-bc"])
def test_normalisers_are_of_the_executed_actions(objective: str, selection: Selection) -> None:
    config = replace(SHORT, objective=objective, executed_actions=True).settled(None)
    policy, _ = build_policy(config, selection)
    shown = slice(*OBS_SLICES["last_action"])
    seen = torch.from_numpy(selection.read("obs")[:, shown])
    if OBJECTIVES[objective].values:
        restored = policy.action_normaliser.normalise(seen)
        torch.testing.assert_close(restored.amax(0), torch.ones(12))
    else:
        torch.testing.assert_close(policy.action_normaliser.mean, seen.mean(0))


def bear_updater(selection: Selection, **changes: Any) -> Updater:
    values = SMALL_VALUES | changes.pop("values", {})
    model = {"model": "mlp", "model_overrides": {"hidden_dim": 8, "n_layers": 1}}
    return updater_of(
        replace(SHORT, objective="bear", values=values, **model, **changes), selection
    )


@given(steps=st.integers(1, 2_000_000), count=st.integers(1, 100_000))
def test_bear_warms_up_for_the_published_share_or_a_number_of_updates(
    steps: int, count: int
) -> None:
    published = TrainConfig("mlp", objective="bear", steps=steps).value_settings()
    assert abs(published.warm_up - steps / 25) <= 0.5
    counted = TrainConfig("mlp", objective="bear", steps=steps, values={"warm_up": count})
    assert counted.value_settings().warm_up == count


@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize(("threshold", "limit", "sign"), [(1e3, 10.0, -1), (0.0, -5.0, 1)])
def test_the_multiplier_of_bear_leaves_its_limit_when_it_should(
    threshold: float, limit: float, sign: int, precision: str, selection: Selection
) -> None:
    values = {"threshold": threshold}
    updater = bear_updater(selection, precision=precision, values=values)
    learner = updater.values
    assert isinstance(learner, BEAR)
    multiplier = learner.log_multiplier.detach()
    beyond = {**learner.state_dict(), "log_multiplier": torch.tensor(limit - 3.0 * sign)}
    learner.load_state_dict(beyond)
    assert float(multiplier) == limit
    batches = TrainingBatches(updater._config, selection, Ranks())
    batch = next(iter(batches))[1]
    batches.stream.close()
    assert updater.step(batch, 0, 0.1).finite
    assert float(multiplier) == pytest.approx(limit + 0.1 * sign, abs=1e-3)
    # The optimiser pushes it out again: a threshold that asks for the opposite.
    learner.settings = replace(learner.settings, threshold=0.0 if sign < 0 else 1e6)
    for number in range(1, 40):
        updater.step(batch, number, 0.5)
        assert -5.0 <= float(multiplier) <= 10.0
    assert float(multiplier) == limit


def test_a_target_policy_draws_the_candidates_of_bear(selection: Selection) -> None:
    updater = bear_updater(selection)
    learner = updater.values
    assert isinstance(learner, BEAR)
    batches = TrainingBatches(updater._config, selection, Ranks())
    batch = next(iter(batches))[1]
    batches.stream.close()
    critics = []
    for _ in range(2):
        torch.manual_seed(0)
        updater.optimiser.zero_grad()
        learner.summed_loss(updater.policy, batch, 0).backward()
        grads = [each.grad for each in learner.q.parameters() if each.grad is not None]
        critics.append(parameters_to_vector(grads))
        with torch.no_grad():
            for parameter in (*updater.policy.parameters(), *learner.spread.parameters()):
                parameter.add_(0.5)
    assert torch.equal(*critics)
    actions = torch.rand(4, 5, 12)
    tokens = torch.rand(5, updater.policy.layout.dim)
    values = torch.stack([learner.q(tokens, action) for action in actions]).mean(0)
    torch.testing.assert_close(learner._value_of(tokens, actions), values.amin(0))
    pairs = ((learner.target_policy, updater.policy), (learner.target_spread, learner.spread))
    before = [parameters_to_vector(target.parameters()) for target, _ in pairs]
    learner.after_step(updater.policy, 0)
    for (target, source), kept in zip(pairs, before, strict=True):
        expected = kept.lerp(parameters_to_vector(source.parameters()), learner.settings.tau)
        torch.testing.assert_close(parameters_to_vector(target.parameters()), expected)


def test_the_constraint_of_bear_holds_back_saturated_actions(selection: Selection) -> None:
    """It compares samples before the tanh, where such actions still have a gradient."""
    updater = bear_updater(selection)
    last = [each for each in updater.policy.modules() if isinstance(each, torch.nn.Linear)][-1]
    with torch.no_grad():
        last.bias.fill_(9.0)
    batches = TrainingBatches(updater._config, selection, Ranks())
    batch = next(iter(batches))[1]
    batches.stream.close()
    updater.step(batch, 0, 1e-3)  # within the warm-up, so that only the constraint acts
    assert last.bias.grad is not None
    assert (last.bias.grad > 1e-5).all()


def test_it_acts_within_the_data(config: TrainConfig, selection: Selection, tmp_path: Path) -> None:
    train(config, selection, tmp_path)
    policy, stored = load_policy(tmp_path), torch.from_numpy(selection.read("action"))
    with torch.no_grad():
        acted = policy(100.0 * torch.randn(64, 4, 70))
    assert (acted >= stored.amin(0) - 1e-5).all()
    assert (acted <= stored.amax(0) + 1e-5).all()
    state, sequence = policy.init_state(2), 100.0 * torch.randn(2, 5, 70)
    with torch.no_grad():
        for t in range(5):
            action, state = policy.step(sequence[:, t], state)
            torch.testing.assert_close(action, policy(sequence)[:, t], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("model", ["fcnet", "bot"])
def test_exported_and_compiled_steps_are_bounded(model: str, selection: Selection) -> None:
    config = replace(SHORT, model=model, model_overrides=SMALL[model], objective="td3-bc")
    policy, _ = build_policy(config, selection)
    policy.eval()
    step, sequence = PolicyStep(policy), 10.0 * torch.randn(1, 12, 70)
    state, compiled = step.initial_state(), compiled_step(policy, 1)
    assert compiled is not None
    with torch.no_grad():
        expected = policy(sequence)[0]
        for t in range(12):
            action, *state = step(sequence[:, t], *state)
            torch.testing.assert_close(action[0], expected[t], atol=1e-4, rtol=1e-4)
            fast = torch.from_numpy(compiled.step(sequence[:, t].numpy(), None))
            torch.testing.assert_close(fast[0], expected[t], atol=1e-4, rtol=1e-4)


def test_the_policys_loss_spares_the_critics(config: TrainConfig, selection: Selection) -> None:
    found = []
    for scale in (1.0, 0.0):
        updater = updater_of(config, selection)
        assert updater.values is not None
        batches = TrainingBatches(config.settled(None), selection, Ranks())
        _, batch = next(iter(batches))
        torch.manual_seed(0)
        for parameter in updater.policy.parameters():
            parameter.requires_grad_(scale > 0.0)
        updater.values.summed_loss(updater.policy, batch, 0).backward()
        found.append(gradients(updater, "values"))
        batches.stream.close()
    for name, gradient in found[0].items():
        other = found[1][name]
        assert gradient is not None
        assert other is not None
        torch.testing.assert_close(gradient, other)


def test_the_policy_and_the_targets_of_td3_bc_wait_for_their_turn(selection: Selection) -> None:
    config = replace(SHORT, objective="td3-bc", values=SMALL_VALUES).settled(None)
    updater = updater_of(config, selection)
    values = updater.values
    assert isinstance(values, TD3BC)
    waiting = (updater.policy, values.target_policy, values.target_q)
    batches = TrainingBatches(config, selection, Ranks())
    for number, (_, batch) in zip(range(6), batches, strict=False):
        if number == 5:  # no transition of a part is known
            batch = {**batch, "mask": torch.zeros_like(batch["mask"])}
        before = [parameters_to_vector(each.parameters()).clone() for each in (*waiting, values.q)]
        updater.step(batch, number, config.peak_lr)
        after = [parameters_to_vector(each.parameters()) for each in (*waiting, values.q)]
        moved = [not torch.equal(one, other) for one, other in zip(before, after, strict=True)]
        assert moved == [number % 2 == 0] * 3 + [True]
    batches.stream.close()


def test_the_next_actions_are_those_of_control(config: TrainConfig, selection: Selection) -> None:
    """Without the dropout of the training, in which the policy itself stays."""
    sizes = {"hidden_dim": 16, "n_heads": 2, "n_layers": 1, "context_len": 4, "dropout": 0.5}
    config = replace(config, model="transformer", model_overrides=sizes).settled(None)
    updater = updater_of(config, selection)
    learner = updater.values
    assert isinstance(learner, ValueLearner)
    updater.policy.train()
    batches = TrainingBatches(config, selection, Ranks())
    _, batch = next(iter(batches))
    batches.stream.close()
    first, again = (learner.next_action(updater.policy, batch) for _ in range(2))
    assert torch.equal(first, again)
    assert all(module.training for module in updater.policy.modules())
    assert not torch.equal(*(learner.action(updater.policy, batch) for _ in range(2)))


FAILED, TIME_LIMIT = 1.0, -1.0
"""The only state of episodes that end so."""


def constant_store(path: Path) -> Selection:
    """Episodes of three steps in one state with reward 1: half fail, half reach their limit."""
    episodes, length = 80, 3
    terminated = np.arange(episodes) % 2 == 0
    state = np.where(terminated, FAILED, TIME_LIMIT).astype(np.float32)
    described = (Field("obs", (2,), slices={"all": (0, 2)}), Field("action", (1,)), Field("reward"))
    final = Field("final_obs", (2,), per="episode")
    store = Store.create(path, Schema((*described, final), control_dt_s=0.02, robot="point"))
    rng, steps = np.random.default_rng(0), episodes * length
    columns = part_input([length] * episodes)["episodes"]
    columns |= {"terminated": terminated, "truncated": ~terminated}
    columns["return"] = np.full(episodes, 3.0) + np.arange(episodes) // 2 % 2
    finals = np.repeat(state[:, None], 2, axis=1)
    arrays = {
        "obs": np.repeat(finals, length, axis=0),
        "action": rng.uniform(-1, 1, (steps, 1)).astype(np.float32),
        "reward": np.ones(steps, np.float32),
    }
    store.write_part("p", arrays, columns, {"final_obs": finals})
    return store.select()


@pytest.mark.slow
@pytest.mark.parametrize("objective", VALUED)
def test_values_go_on_unless_it_failed(objective: str, tmp_path: Path) -> None:
    gamma, length = 0.5, 3
    selection = constant_store(tmp_path / "s")
    values = {"hidden": [16], "gamma": gamma, "tau": 0.2, "reward_scale": 1.0}
    values |= {"expectile": 0.5} if objective == "iql" else {}
    values |= {"trace": 0.0} if objective == "awr" else {}
    values |= {"conservative": 0.0} if objective == "cql" else {}
    values |= {"value_weight": 0.0} if objective == "rebrac" else {}
    values |= {"penalty": 0.0} if objective == "brac-v" else {}
    config = TrainConfig.recommended(
        "mlp", objective=objective, values=values, peak_lr=1e-2, batch_size=64, threads=1
    )
    config = replace(config, model_overrides={"hidden_dim": 8}, window_len=1).settled(None)
    updater = updater_of(config, selection)
    assert updater.values is not None
    batches = TrainingBatches(config, selection, Ranks())
    batch: dict[str, torch.Tensor] = {}
    for number, (_, batch) in zip(range(150), batches, strict=False):
        updater.step(batch, number, config.peak_lr)
    learner: Any = updater.values
    step = learner.transitions(updater.policy, batch)
    with torch.no_grad():
        valued = hasattr(learner, "q")
        found = learner.q(step.obs, step.action) if valued else learner.v(step.obs)
    batches.stream.close()
    # A state's value V is the mean over the steps of an episode of what follows each.
    failed = step.obs[:, 0].sign() == FAILED
    for rows, going_on in ((failed, 1.0 - 1.0 / length), (~failed, 1.0)):
        expected = 1.0 / (1.0 - gamma * going_on)
        assert float(found[..., rows].mean()) == pytest.approx(expected, rel=0.05)


@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=5),
    trace=st.floats(0, 1),
    gamma=st.floats(0.1, 1),
    seed=st.integers(0, 2**16),
)
def test_the_returns_of_awr(lengths: list[int], trace: float, gamma: float, seed: int) -> None:
    rng, longest = np.random.default_rng(seed), max(lengths)
    mask = np.arange(longest) < np.array(lengths)[:, None]
    reward, following = rng.normal(size=(2, *mask.shape))
    going_on = np.ones(mask.shape)
    for row, length in enumerate(lengths):
        going_on[row, length - 1] = rng.integers(2)
    learner = AWR.__new__(AWR)
    torch.nn.Module.__init__(learner)
    learner.settings = AWRSettings(gamma=gamma, trace=trace)
    given_steps = [torch.from_numpy(each[mask]) for each in (reward, going_on, following)]
    rewards, ahead, values = given_steps
    found = learner._returns(rewards, ahead, values, torch.from_numpy(mask)).numpy()
    expected = np.zeros(mask.shape)
    for row, length in enumerate(lengths):
        for t in range(length):
            # Sum over horizons n of (1 - trace) trace^(n - 1) G_n; the last one has the rest.
            total, discounted, weight = 0.0, 0.0, 1.0
            for n in range(1, length - t + 1):
                k = t + n - 1
                discounted += gamma ** (n - 1) * reward[row, k]
                bootstrapped = discounted + gamma**n * going_on[row, k] * following[row, k]
                last = k == length - 1
                total += weight * (1.0 if last else 1.0 - trace) * bootstrapped
                weight *= trace
            expected[row, t] = total
    np.testing.assert_allclose(found, expected[mask], rtol=1e-6, atol=1e-6)


def test_equal_returns_give_rewards_no_scale(selection: Selection) -> None:
    config = replace(SHORT, objective="iql", values=SMALL_VALUES)
    policy, _ = build_policy(config.settled(None), selection)
    scales = []
    for episodes in (selection, selection.with_rows(selection.rows[:1])):
        values = build_values(config, policy, episodes)
        assert isinstance(values, ValueLearner)
        scales.append(values.reward_scale)
    returns = selection.episodes("return")["return"].to_numpy()
    assert scales == [pytest.approx(1000.0 / (returns.max() - returns.min())), 1.0]


def test_what_does_not_fit_is_refused(selection: Selection, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"objective iql has no setting 'alpha'; allowed: gamma, "):
        TrainConfig(objective="iql", values={"alpha": 1.0})
    with pytest.raises(ValueError, match="objective bc has no setting 'gamma', as it learns no"):
        TrainConfig(values={"gamma": 0.9})
    with pytest.raises(ValueError, match=r"expectile must lie in \(0, 1\)"):
        TrainConfig(objective="iql", values={"expectile": 1.0})
    of_type = r"objective td3-bc: setting policy_every must be a whole number, got 1.5"
    with pytest.raises(ValueError, match=of_type):  # the policy would learn in every third update
        TrainConfig(objective="td3-bc", values={"policy_every": 1.5})
    with pytest.raises(ValueError, match="setting hidden must be a list, got 256"):
        TrainConfig(objective="td3-bc", values={"hidden": 256})
    schema = replace(selection.schema, fields=selection.schema.fields[:2])
    store = Store.create(tmp_path / "s", schema)
    steps = {name: selection.read(name) for name in ("obs", "action")}
    store.write_part("p", steps, selection.episodes().drop_columns(["part", "start"]))
    with pytest.raises(ValueError, match="has no field reward per step, from which values"):
        train(replace(SHORT, objective="iql"), store.select(), tmp_path / "run")
