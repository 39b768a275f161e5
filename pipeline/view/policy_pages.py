"""Episodes of a page that a policy runs: from a training run, or from an evaluation's file."""

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from gaitforge.collectors.experts.expert import DEFAULT_EXPERT, load_expert
from gaitforge.collectors.legged.data import part_catalog
from gaitforge.collectors.legged.episodes import EpisodeSpec
from gaitforge.collectors.training_folder import POLICY
from gaitforge.common.errors import amount
from gaitforge.flows.progress import Reporter
from gaitforge.flows.records.plans import check_value, plan_from_tree
from gaitforge.flows.records.records import read_record, reading_files
from gaitforge.flows.tasks.legged_evaluation import LeggedEvaluation
from gaitforge.flows.tasks.policy_source import EXPERT, PolicySource, run_source
from gaitforge.pipeline.view.recording import record, recorded_charts
from gaitforge.pipeline.view.show import MOST_PARALLEL, NothingToShow, Show, spec_of, viewed


def policy_show(
    source: PolicySource, plan: LeggedEvaluation, specs: Sequence[EpisodeSpec], reporter: Reporter
) -> Show:
    """A policy on episodes, in their order, with the plan's simulator, robot and settings.

    ValueError without such a policy, or without episodes.
    """
    if not specs:
        raise ValueError("no episode to run")
    robots = min(MOST_PARALLEL, len(specs))
    policy = plan.load(source, robots)[0]
    card = plan.card_of(source)
    with closing(plan.environment(card, robots)) as env:
        total = len(specs) * env.episode_steps
        with reporter.step("run", total, "step") as advance:
            pairs = list(record(env, policy, specs, lambda n: advance(n, source.name)))
        simulator = env.physics.name, env.physics.version
    # The order of the catalog's rows.
    pairs.sort(key=lambda pair: pair[0].spec.index)
    actor = source.name, plan.key(source)["weights"]
    results = [result for result, _ in pairs]
    names = env.randomisation.names
    columns = part_catalog(results, card, simulator, actor, draws=names)
    columns |= {"policy": columns.pop("expert"), "policy_hash": columns.pop("expert_hash")}
    rows = (dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))
    episodes = [
        viewed(row, recording, card) for row, (_, recording) in zip(rows, pairs, strict=True)
    ]
    return Show(
        f"policy {source.name}",
        card,
        recorded_charts(card),
        tuple(episodes),
        randomisation=plan.randomisation,
    )


def ghost_source(name: str) -> PolicySource:
    """The default expert by "expert", or the policy in a folder; ValueError without one."""
    if name == "expert":
        return PolicySource(name, EXPERT, DEFAULT_EXPERT)
    return run_source(Path(name))


def default_robot() -> str:
    """The name of the robot that the default expert drives."""
    return load_expert(DEFAULT_EXPERT).policy.robot.name


def with_ghosts(show: Show, source: PolicySource, reporter: Reporter) -> Show:
    """The same page with another policy on the same starts and seeds, without action noise.

    ValueError as by `policy_show`.
    """
    rows = [episode.row for episode in show.episodes]
    specs = [replace(spec_of(row), index=k, action_noise=0.0) for k, row in enumerate(rows)]
    plan = LeggedEvaluation(robot=str(show.robot.path), randomisation=show.randomisation)
    ghosts = policy_show(source, plan, specs, reporter).episodes
    pairs = zip(show.episodes, ghosts, strict=True)
    episodes = tuple(replace(episode, ghost=ghost) for episode, ghost in pairs)
    return replace(show, episodes=episodes, ghost=source.name)


def evaluation_files(path: Path) -> list[Path]:
    """The evaluations of a path: itself, or those that demo, compare and dagger leave in it."""
    if path.suffix == ".json" and path.is_file():
        return [path]
    folder = path if path.name == "evaluate" else path / "evaluate"
    return sorted(folder.rglob("*.json"))


def evaluation_show(path: Path, reporter: Reporter) -> Show:
    """The worst, the median and the best episode of every cell of an evaluation, run again.

    An evaluation keeps each episode's return, not its steps; an episode is a function of its seed
    and the policy.

    Raises:
        NothingToShow: it is of several robots, or of an expert that it does not tell.
        ValueError: no evaluation of the legged task, or its policy is gone or was trained further.
    """
    tree = read_record(path)
    if not isinstance(tree, dict) or not {"plan", "key", "returns", "cells"} <= tree.keys():
        raise ValueError(f"{path} is no evaluation with its plan and returns")
    check_value(Mapping[str, Any], tree["key"], f"{path}: key")
    plan = plan_from_tree(LeggedEvaluation, tree["plan"])
    if plan.each_robot():
        raise NothingToShow(
            f"{path} is of several robots; a page shows one: gaitforge view --robot"
        )
    source = _evaluated(path, tree["key"].get("weights"))
    with reading_files(path.parent):
        returns = _extremes(plan, tree)
    specs = [spec for spec in plan.grid.specs() if spec.index in returns]
    show = policy_show(source, plan, specs, reporter)
    apart = sum(abs(v.row["return"] - returns[v.row["episode"]]) > 1e-3 for v in show.episodes)
    note = "The worst, the median and the best episode of every cell, run again."
    # A network's last bits depend on how many robots it drives at once.
    note += f" {amount(apart, 'episode')} came out otherwise than evaluated." if apart else ""
    return replace(show, title=f"evaluation {path.stem}", note=note)


def _evaluated(path: Path, weights: str | None) -> PolicySource:
    """The policy of OUT/evaluate/NAME.json: the run OUT/train/NAME, or the default expert."""
    run = path.parent.parent / "train" / path.stem
    run = run / POLICY if (run / POLICY).is_dir() else run  # of reinforcement learning
    expert = PolicySource(path.stem, EXPERT, DEFAULT_EXPERT)
    source = run_source(run) if run.is_dir() else expert
    if LeggedEvaluation().key(source)["weights"] == weights:
        return source
    # An expert's evaluation does not tell where it is.
    kind = ValueError if run.is_dir() else NothingToShow
    raise kind(
        f"{path} keeps no episodes, and its policy is not at {run}; "
        "give the folder of its training run to view"
    )


def _extremes(plan: LeggedEvaluation, tree: dict[str, Any]) -> dict[int, float]:
    """Index -> return of the worst, median and best episode of every cell."""
    extremes = {}
    for cell, returns in zip(tree["cells"], tree["returns"], strict=True):
        where = cell["terrain"], cell["skill"], cell["level"]
        indices = [s.index for s in plan.grid.specs() if (s.terrain, s.skill, s.level) == where]
        order = np.argsort(returns, kind="stable")
        for k in order[[0, len(order) // 2, -1]]:
            extremes[indices[k]] = float(returns[k])
    return extremes
