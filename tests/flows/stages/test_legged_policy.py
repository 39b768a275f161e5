"""Parts that a policy drives: who drove, what is stored, and what the parts' names change with.

The runners, resume and replay of such parts are in `test_tasks`.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gaitforge.collectors.experts.expert import DEFAULT_EXPERT, load_expert
from gaitforge.collectors.legged.data import StoredForm
from gaitforge.collectors.legged.environment import MAX_ACTION
from gaitforge.collectors.legged.episodes import draw_episode, driven_steps
from gaitforge.collectors.legged.observations import POLICY_SLICES
from gaitforge.collectors.policy import Observation
from gaitforge.collectors.robots.kinematics import C
from gaitforge.collectors.timing import CONTROL_DT_S
from gaitforge.common.trust import VARIABLE
from gaitforge.datasets import Store, open_store
from gaitforge.flows.progress import Silent
from gaitforge.flows.records.records import digest
from gaitforge.flows.stages.collect import collect, collect_part, prepare
from gaitforge.flows.stages.replay import replay
from gaitforge.flows.tasks.legged_evaluation import LeggedPolicyPlan, driven_by
from tests.flows.making import COLLECT, GRID

SWAY = """
import numpy as np

class Sway:
    name = "sway"

    def __init__(self, robots):
        self.steps = np.zeros(robots)

    def reset(self, ids):
        self.steps[ids] = 0

    def act(self, observation):
        self.steps += 1
        return np.repeat(0.3 * np.sin(self.steps / 5)[:, None], 12, axis=1).astype(np.float32)
"""
BASE = replace(
    COLLECT,
    grid=replace(GRID, parts=1, action_noise=(0.0, 0.25)),
    form=StoredForm(privileged=True),
)


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A plan by a class of the user's own, in turns with the expert."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "sway.py").write_text(SWAY)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        patch.setenv(VARIABLE, "sway:Sway stand:Sway sway:Nobody")
        yield driven_by(BASE, "sway:Sway", DEFAULT_EXPERT, share=0.4, stretch=10)


@pytest.fixture(scope="module")
def store(plan: LeggedPolicyPlan, tmp_path_factory: pytest.TempPathFactory) -> Store:
    """The plan's episodes beside those of the expert alone, in one store."""
    path = tmp_path_factory.mktemp("driven") / "legged.zarr"
    collect(BASE, path, Silent())
    collect(plan, path, Silent())
    assert replay(path, 16, 0, Silent()) == []
    open_store(path).compact()
    assert replay(path, 4, 1, Silent()) == []
    return open_store(path)


def test_the_catalog_tells_who_labelled_and_who_drove(store: Store) -> None:
    assert len(store.select()) == 16
    driven = store.select(policy="sway")
    rows = driven.episodes().to_pylist()
    assert len(rows) == 8
    assert {(row["expert"], row["policy_share"]) for row in rows} == {(DEFAULT_EXPERT, 0.4)}
    for row in rows:
        drove = driven_steps(row["seed"], 0.4, row["policy_stretch"], row["length"])
        assert row["policy_steps"] == drove.sum()
    assert len(store.select().where("policy IS NULL")) == 8


def test_the_policy_is_executed_where_it_drove_and_the_expert_elsewhere(store: Store) -> None:
    selection = store.select(policy="sway").where("action_noise = 0")
    assert len(selection) > 0
    for index, row in enumerate(selection.episodes().to_pylist()):
        episode = selection.episode(index)
        seen = np.concatenate([episode["obs"], episode["final_obs"][None]])
        executed = seen[1:, slice(*POLICY_SLICES["last_action"])]
        steps = np.arange(1, row["length"] + 1)
        swayed = np.repeat(0.3 * np.sin(steps / 5)[:, None], 12, axis=1).astype(np.float32)
        label = np.clip(episode["action"], -MAX_ACTION, MAX_ACTION)
        drove = driven_steps(row["seed"], 0.4, 10, row["length"])
        np.testing.assert_array_equal(executed, np.where(drove[:, None], swayed, label))


def test_every_step_is_labelled_with_the_experts_action_there(
    store: Store, plan: LeggedPolicyPlan
) -> None:
    expert, selection = load_expert().policy, store.select(policy="sway")
    specs = {spec.index: spec for spec in plan.grid.part_specs(plan.part_ids()[0])}
    for index, row in enumerate(selection.episodes().to_pylist()):
        episode = selection.episode(index)
        command = draw_episode(specs[row["episode"]], expert.robot).command
        obs, steps = episode["obs"], np.arange(row["length"])
        observation = Observation(
            policy=obs,
            reward=episode["reward"],
            command=obs[:, slice(*POLICY_SLICES["command"])].astype(np.float64),
            clock=command[C.GAIT_FREQUENCY] * steps * CONTROL_DT_S,
            make_privileged=lambda stored=episode["privileged"]: stored,
            heights=lambda points: np.zeros((0, len(points))),
        )
        np.testing.assert_allclose(episode["action"], expert.act(observation), atol=2e-3)


@given(st.integers(0, 2**63), st.floats(0.01, 1.0), st.integers(1, 250), st.integers(1, 200))
@settings(max_examples=50)
def test_who_drives_changes_between_stretches_only(
    seed: int, share: float, stretch: int, steps: int
) -> None:
    drove = driven_steps(seed, share, stretch, steps)
    changes = np.flatnonzero(np.diff(drove)) + 1
    assert not (changes % stretch).any()
    np.testing.assert_array_equal(driven_steps(seed, share, stretch, 2 * steps)[:steps], drove)


def test_the_policy_drives_its_share() -> None:
    drove = [driven_steps(seed, 0.3, 12).mean() for seed in range(2000)]
    assert np.mean(drove) == pytest.approx(0.3, abs=0.01)


@pytest.mark.slow
def test_without_a_labeller_the_policys_own_actions_are_stored(
    plan: LeggedPolicyPlan, tmp_path: Path
) -> None:
    alone = replace(plan, expert="")
    collect(alone, tmp_path / "own.zarr", Silent())
    selection = open_store(tmp_path / "own.zarr").select()
    for row in selection.episodes().to_pylist():
        assert (row["expert"], row["policy"], row["policy_share"]) == ("sway", "sway", 1.0)
        assert row["expert_hash"] == row["policy_hash"]
    first = selection.episode(0)["action"][:2, 0]
    np.testing.assert_allclose(first, 0.3 * np.sin([0.2, 0.4]), 1e-6)
    assert replay(tmp_path / "own.zarr", 8, 0, Silent()) == []


def test_the_names_of_parts_change_with_what_changes_them(plan: LeggedPolicyPlan) -> None:
    others = [
        BASE,
        *(replace(plan, **{name: value}) for name, value in (("share", 0.5), ("stretch", 9))),
        *(replace(plan, **{name: value}) for name, value in (("expert", ""), ("robots", 4))),
    ]
    assert len({digest(each.part_ids()) for each in (plan, *others)}) == 1 + len(others)
    assert replace(plan, threads=1).part_ids() == plan.part_ids()
    alone = replace(plan, expert="")
    assert replace(alone, share=0.5).part_ids() == alone.part_ids()


def test_a_policy_that_changed_since_is_refused(
    plan: LeggedPolicyPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "stand.py").write_text(SWAY)
    monkeypatch.syspath_prepend(tmp_path)
    own = replace(plan, policy="stand:Sway")
    [part] = prepare(own, tmp_path / "own.zarr").missing
    (tmp_path / "stand.py").write_text(SWAY.replace("0.3", "0.2"))
    with pytest.raises(ValueError, match="policy's file changed since"):
        collect_part(own, tmp_path / "own.zarr", part)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"policy": ""}, "a policy is needed"),
        ({"share": 0.0}, "share must be above 0, at most 1, got"),
        ({"stretch": 0}, "stretch must be at least 1, got 0"),
        ({"policy": "nowhere"}, "no training run at nowhere"),
        ({"policy": "sway:Nobody"}, "no policy sway:Nobody"),
    ],
)
def test_an_impossible_plan_is_refused(
    plan: LeggedPolicyPlan, changes: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        replace(plan, **changes).part_ids()
