"""One store of many robots: parts take the bodies in turn, and everything knows which is whose."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from safetensors.numpy import save_file

from gaitforge.collectors.experts.expert import DEFAULT_EXPERT, FEATURE_DIM
from gaitforge.collectors.legged.data import CollectionGrid
from gaitforge.collectors.legged.observations import OBS_DIM
from gaitforge.collectors.legged.rollout import EvaluationGrid
from gaitforge.collectors.policy import Observation
from gaitforge.collectors.robots.kinematics import N_COMMANDS
from gaitforge.collectors.robots.robot import (
    BODY_DIM,
    DESCRIPTOR_NAMES,
    N_JOINTS,
    SEVERAL,
    RobotCard,
    body_vector,
    descriptor,
    load_robot,
    stored_robot,
)
from gaitforge.datasets import Store, open_store
from gaitforge.datasets.catalog.episodes import glossary
from gaitforge.flows.experiments.claim import Claim
from gaitforge.flows.experiments.plan import Experiment
from gaitforge.flows.progress import Silent
from gaitforge.flows.stages import expert_training
from gaitforge.flows.stages.collect import collect
from gaitforge.flows.stages.expert_training import evaluate_bodies
from gaitforge.flows.stages.replay import replay
from gaitforge.flows.stages.train import TrainPlan, run_training
from gaitforge.flows.stages.transfer import ExportPlan, run_export
from gaitforge.flows.tasks.legged import LeggedPlan
from gaitforge.flows.tasks.legged_evaluation import LeggedEvaluation
from gaitforge.flows.tasks.policy_sources import PolicySource, run_source
from gaitforge.learners.models.bodies import robot_tree
from gaitforge.learners.training.batches import TrainingBatches
from gaitforge.learners.training.config import TrainConfig
from gaitforge.learners.training.distributed import Ranks
from gaitforge.pipeline.cli.main import main
from gaitforge.pipeline.report.report import write_report
from tests.collectors.making import ROBOT
from tests.collectors.robots.robot_folders import GO1, family_of
from tests.flows.making import run_experiment

pytestmark = pytest.mark.slow

GRID = CollectionGrid(("flat",), ("rush", "crawl"), (0, 4), parts=5, episodes_per_part=4)


def gait_expert(path: Path, robot: str, family: bool) -> str:
    """An expert that adds nothing to the gait, for one robot or a family."""
    width = FEATURE_DIM + (BODY_DIM if family else 0)
    weights = {
        "mean": np.zeros(width, dtype=np.float32),
        "std": np.ones(width, dtype=np.float32),
        "layer0.weight": np.zeros((N_JOINTS, width), dtype=np.float32),
        "layer0.bias": np.zeros(N_JOINTS, dtype=np.float32),
    }
    save_file(weights, path)
    path.with_suffix(".json").write_text(json.dumps({"robot": robot}))
    return str(path)


@pytest.fixture(scope="module")
def bodies(tmp_path_factory: pytest.TempPathFactory) -> list[RobotCard]:
    """Two varied bodies, in folders that are gone when the store is used."""
    return family_of(ROBOT, 2, tmp_path_factory.mktemp("family") / "bodies")


@pytest.fixture(scope="module")
def plan(bodies: list[RobotCard], tmp_path_factory: pytest.TempPathFactory) -> LeggedPlan:
    """Aliengo by its expert, Go1 by its own, and a family by one for families."""
    folder = tmp_path_factory.mktemp("experts")
    family = str(bodies[0].path.parent.parent)
    experts = [
        DEFAULT_EXPERT,
        gait_expert(folder / "go1.safetensors", "go1", False),
        gait_expert(folder / "family.safetensors", family, True),
    ]
    return LeggedPlan(grid=GRID, expert=",".join(experts), robots=4, threads=1)


@pytest.fixture(scope="module")
def store(plan: LeggedPlan, tmp_path_factory: pytest.TempPathFactory) -> Store:
    path = tmp_path_factory.mktemp("store") / "legged.zarr"
    collect(plan, path, Silent())
    return open_store(path)


def test_parts_take_the_robots_of_the_experts_in_turn(
    store: Store, plan: LeggedPlan, bodies: list[RobotCard]
) -> None:
    names = ["aliengo", "go1", *(body.name for body in bodies)]
    table = store.select().episodes()
    robots = np.array(table.column("robot").to_pylist()).reshape(GRID.parts, -1)
    assert robots[:, 0].tolist() == [*names, names[0]]
    assert (robots == robots[:, :1]).all()
    experts = dict(zip(table["robot"].to_pylist(), table["expert_hash"].to_pylist(), strict=True))
    assert experts[names[2]] == experts[names[3]]
    assert len(set(experts.values())) == 3
    assert store.schema.robot == SEVERAL
    assert store.verify() == []


def test_columns_and_schema_describe_every_body(store: Store, bodies: list[RobotCard]) -> None:
    for robot in (ROBOT, GO1, *bodies):
        [row, *_] = store.select().where(f"robot = '{robot.name}'").episodes().to_pylist()
        found = [row[name] for name in DESCRIPTOR_NAMES]
        np.testing.assert_array_equal(found, descriptor(robot))
    heavy = store.select().where("body_mass_kg > 20 and body_front_thigh_m > 0.2")
    assert "aliengo" in set(heavy.episodes()["robot"].to_pylist())
    assert "go1" not in set(heavy.episodes()["robot"].to_pylist())
    known = {c.name: c for c in glossary(store.schema, store.select().episodes().schema)}
    assert known["body_front_thigh_m"].meaning == "the robot's front thigh"
    assert all(known[name].unit for name in DESCRIPTOR_NAMES)


def test_a_store_is_replayed_bit_for_bit_where_the_robots_folders_are_gone(
    store: Store, bodies: list[RobotCard], tmp_path: Path
) -> None:
    again = [stored_robot(store.schema.attributes, body.name) for body in bodies]
    folder = bodies[0].path.parent.parent
    moved = tmp_path / "away"
    shutil.move(folder, moved)
    try:
        assert replay(store.path, 20, 0, Silent()) == []
    finally:
        shutil.move(moved, folder)
    for body, other in zip(bodies, again, strict=True):
        assert other.name == body.name
        np.testing.assert_array_equal(descriptor(other), descriptor(body))


def test_chosen_robots_are_collected_alone_and_lost_ones_named(
    plan: LeggedPlan, bodies: list[RobotCard]
) -> None:
    one = replace(plan, robot=str(bodies[1].path.parent))
    assert [robot.name for robot, _ in one.pairs()] == [bodies[1].name]
    assert one.schema().robot == bodies[1].name
    assert one.part_ids() != plan.part_ids()
    with pytest.raises(ValueError, match="no expert among aliengo-locomotion drives go1"):
        replace(plan, expert=DEFAULT_EXPERT, robot="aliengo,go1").schema()
    with pytest.raises(ValueError, match="robot go1 is named more than once"):
        replace(plan, robot="go1,go1").schema()


def test_the_motors_order_changes_no_parts(plan: LeggedPlan, bodies: list[RobotCard]) -> None:
    one = replace(plan, robot=str(bodies[1].path.parent))
    card = bodies[1].path
    text = card.read_text()
    entries = json.loads(text)
    del entries["motor_names"]
    motors = list(bodies[1].joint_names[::-1])
    parts = []
    try:
        for further in ({}, {"motor_names": motors}, {"variation": {}}):
            for card_entries in (entries | further, further | entries):
                card.write_text(json.dumps(card_entries, indent=2) + "\n")
                parts.append(one.part_ids())
    finally:
        card.write_text(text)
    assert parts[0] == parts[1] == parts[2] == parts[3]
    assert parts[4] != parts[0]


def test_one_robots_plan_and_schema_are_as_before() -> None:
    assert LeggedPlan().content().keys() == {
        *("terrains", "skills", "levels", "parts", "episodes_per_part", "action_noise", "seed"),
        *("expert", "sim", "form"),
    }
    assert "robots" not in LeggedPlan().schema().attributes
    assert LeggedPlan().schema().robot == load_robot().name


def seen(rows: int) -> Observation:
    """Some observation of N robots."""
    rng = np.random.default_rng(0)
    policy = rng.normal(size=(rows, OBS_DIM)).astype(np.float32)
    zero = np.zeros(rows)
    return Observation(
        policy, zero, np.zeros((rows, N_COMMANDS)), zero, lambda: zero, lambda _: zero
    )


@pytest.fixture(scope="module", params=["fcnet", "bot"])
def run(
    store: Store, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A policy for all robots of the store, trained for a few steps."""
    out = tmp_path_factory.mktemp("runs") / request.param
    small = {"bot": {"embed_dim": 16, "n_layers": 2}}
    overrides = small.get(request.param, {"hidden_dim": 16, "n_layers": 1})
    config = TrainConfig(model=request.param, steps=4, model_overrides=overrides, threads=1)
    run_training(TrainPlan(config=config), store.path, out, Silent())
    return out


def test_one_policy_drives_every_body_by_its_vector(run: Path, bodies: list[RobotCard]) -> None:
    source = PolicySource("learned", "run", str(run))
    with pytest.raises(ValueError, match="drives several robots; name one: --robot"):
        LeggedEvaluation().load(source, 1)
    observation = seen(2)
    actions = {}
    for robot in ("go1", "aliengo", str(bodies[0].path.parent)):
        plan = LeggedEvaluation(robot=robot)
        first, again = (plan.load(source, 2)[0].act(observation) for _ in range(2))
        actions[plan.card_of(source).name] = first
        assert np.isfinite(first).all()
        np.testing.assert_array_equal(again, first)
    assert not np.allclose(actions["go1"], actions["aliengo"], atol=1e-4)


def test_the_batch_has_each_episodes_own_body(store: Store) -> None:
    selection = store.select()
    config = TrainConfig(window_len=32, batch_size=4)
    settled = replace(config, prefix_len=0)
    batches = TrainingBatches(settled, selection, Ranks())
    rows = selection.episodes()["robot"].to_pylist()
    try:
        for _, (_, batch) in zip(range(10), batches, strict=False):
            for body, episode in zip(batch["body"], batch["episode"].tolist(), strict=True):
                expected = body_vector(stored_robot(store.schema.attributes, rows[episode]))
                np.testing.assert_array_equal(body.numpy(), expected)
    finally:
        batches.stream.close()


def test_an_exported_policy_holds_the_body_of_its_robot(run: Path, tmp_path: Path) -> None:
    source = PolicySource("learned", "run", str(run))
    observation = seen(1)
    for robot in ("go1", "aliengo"):
        out = tmp_path / robot
        run_export(ExportPlan(robot=robot), run, out, Silent())
        assert LeggedEvaluation().card_of(run_source(out)).name == robot
        exported, _ = LeggedEvaluation().load(run_source(out), 1)
        trained, _ = LeggedEvaluation(robot=robot).load(source, 1)
        np.testing.assert_allclose(exported.act(observation), trained.act(observation), atol=1e-4)


def test_a_policy_is_evaluated_on_every_body_beside_its_expert(
    run: Path, plan: LeggedPlan, bodies: list[RobotCard], tmp_path: Path
) -> None:
    grid = EvaluationGrid(("flat",), ("stand",), levels=(0,), episodes=2)
    evaluation = LeggedEvaluation(grid=grid, threads=1, robots=2)
    robots = [load_robot("go1"), bodies[0]]
    experts = {robot.name: expert for robot, expert in plan.pairs()}
    source = PolicySource("learned", "run", str(run))
    found = evaluate_bodies(source, evaluation, robots, Silent(), tmp_path / "kept", experts)
    assert [each.robot for each in found] == ["go1", bodies[0].name]
    for each in found:
        assert 0.0 <= each.survival <= 1.0
        assert each.expert_return is not None
        if each.expert_return > 0:
            assert each.share == pytest.approx(each.return_ / each.expert_return)
        else:
            assert each.share is None, "no share of a return that is not above 0"
    kept = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "kept").iterdir()}
    assert len(kept) == 4
    again = evaluate_bodies(source, evaluation, robots, Silent(), tmp_path / "kept", experts)
    assert again == found
    assert {p.name: p.stat().st_mtime_ns for p in (tmp_path / "kept").iterdir()} == kept


def test_a_return_has_no_share_of_one_that_is_not_above_0(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def told(source: PolicySource, plan: LeggedEvaluation, *_: object) -> SimpleNamespace:
        is_expert, is_go1 = source.kind == "expert", "go1" in plan.robot
        return_ = (0.0 if is_go1 else 4.0) if is_expert else -1.0
        return SimpleNamespace(return_=return_, success=0.5, survival=1.0)

    monkeypatch.setattr(expert_training, "evaluate_policy", told)
    words = ["evaluate", "fcnet-aliengo", "--robot", "go1,aliengo"]
    words += ["--beside", "go1-locomotion,aliengo-locomotion"]
    assert main([*words, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["share"] for row in rows] == [None, -0.25]
    assert main(words) == 0
    assert "means over 2 robots: return -1.000" in capsys.readouterr().out


def test_an_experiments_page_has_the_robots_trained_on_and_left_out(
    store: Store, bodies: list[RobotCard], tmp_path: Path
) -> None:
    body = bodies[1]
    tree = str(body.path.parent)
    learner = {"model": "bot", "model_overrides": {"embed_dim": 8, "n_layers": 1, "body": tree}}
    place, cells = str(store.path), {"terrains": ("flat",), "skills": ("stand",), "levels": (0,)}
    experts = "aliengo-family,go1-locomotion,a1-locomotion"
    plan = Experiment(
        {"bot": learner},
        settings={"steps": 4, "batch_size": 4, "split_seed": 0, "equal_shares": "robot"},
        evaluate={**cells, "episodes": 2, "robots": 2, "threads": 1, "robot": f"go1,a1,{tree}"},
        expert=experts,
    )
    out = tmp_path / "out"
    summary = run_experiment(Claim("bodies", plan, (place,)), out, Silent())
    [result] = summary["results"]
    assert [row["robot"] for row in result["robots"]] == ["go1", "a1", body.name]
    grid = EvaluationGrid(**cells, episodes=2)
    alone = LeggedEvaluation(grid=grid, threads=1, robots=2)
    folder = out / "train" / result["runs"][0]
    source = PolicySource("learned", "run", str(folder))
    cards = [GO1, load_robot("a1"), body]
    own = {robot.name: expert for robot, expert in LeggedPlan(
        expert=experts, robot=f"go1,a1,{tree}").pairs()}  # fmt: skip
    for each in evaluate_bodies(source, alone, cards, Silent(), experts=own):
        [row] = [row for row in result["robots"] if row["robot"] == each.robot]
        assert row["return_fraction"]["mean"] == pytest.approx(each.share)
    page = write_report(out).read_text()
    for name, kind in (("go1", "trained on"), ("a1", "left out"), (body.name, "trained on")):
        assert f"{name}" in page[page.index("By robot") :]
        assert kind in page
    assert result["model"] == "bot"
    kept = json.loads((folder / "checkpoint.json").read_text())
    assert kept["model"]["config"]["body"]["parents"] == robot_tree(Path(tree))["parents"]
