"""Contact sheets and films of an expert, one typical episode per skill, and of learners.

The episode shown has the median return of a few held-out ones; the sheet says how many of these
succeeded. Of a learner's evaluation two are run again: a typical episode and a typical failure.
Of the best learner a third one is filmed, which moves. Of a store, typical episodes are drawn as
they were recorded.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from gaitforge.collectors.experts.expert import DEFAULT_EXPERT, Expert, load_expert
from gaitforge.collectors.legged.environment import LeggedEnvironment
from gaitforge.collectors.legged.episodes import EpisodeSpec
from gaitforge.collectors.legged.replaying import (
    by_robot,
    replay_environment,
    replayed,
    stored_episodes,
)
from gaitforge.collectors.legged.rollout import EpisodeResult, EvaluationGrid, run_episodes
from gaitforge.collectors.rendering.rendering import (
    RenderingError,
    Scene,
    Shot,
    draw,
    frame_steps,
    scene_of,
)
from gaitforge.collectors.robots.robot import RobotCard
from gaitforge.collectors.scenarios.skills import ALL_SKILLS, SKILLS, check_skill
from gaitforge.collectors.scenarios.terrains import TERRAINS, check_terrain
from gaitforge.collectors.timing import CONTROL_DT_S
from gaitforge.common.errors import amount
from gaitforge.common.files import join_inside, write_bytes_durably
from gaitforge.common.machine import default_threads
from gaitforge.datasets import Selection
from gaitforge.datasets.catalog.summaries import episode_name
from gaitforge.flows.records.plans import plan_from_tree
from gaitforge.flows.records.records import digest, read_record, write_record
from gaitforge.flows.tasks.legged_evaluation import LeggedEvaluation
from gaitforge.flows.tasks.policy_sources import PolicySource, run_source
from gaitforge.pipeline.report.pages import PICTURES, policy
from gaitforge.pipeline.report.picture_files import (
    FRAME_PX,
    MAX_EMBEDDED_BYTES,
    SHEET_FRAMES,
    Heading,
    animation,
    contact_sheet,
    still,
)
from gaitforge.pipeline.report.report_files import EXPERT, PICTURE_INDEX
from gaitforge.pipeline.report.results import best_run, first_runs

FORMATS = ("png", "gif", "webp", "mp4")
FILM_MS = 40
TILES_MS = 60
"""Duration of a frame of one film, and of several films in one picture."""
_DRAWING = 4
"""Version of the drawing: raise it to have existing sheets drawn again."""

# Few rows round differently: returns are within 0.002 of the evaluation's, with 2 robots 0.05.
_ROBOTS = 8
_FILM_PX = (480, 300)
_FILM = "film"
_WALK_M = 0.5
_TRIED = 40
"""Episodes of a cell that are run to find a failure."""


@dataclass(frozen=True)
class FilmPlan:
    """Plan of films: skills, and the terrain of each.

    Attributes:
        terrains: allowed ones; a skill is shown on the hardest one that has its passage, else on
            the hardest one that it is commanded on.
        episodes: how many are run per skill; the one of median return is shown.
    """

    skills: tuple[str, ...] = tuple(SKILLS)
    terrains: tuple[str, ...] = tuple(TERRAINS)
    level: int = 4
    seed: int = 1_000_003
    episodes: int = 5

    def __post_init__(self) -> None:
        for skill in self.skills:
            check_skill(skill)
        for terrain in self.terrains:
            check_terrain(terrain)

    def grids(self) -> dict[str, EvaluationGrid]:
        """The episodes to run, by skill; ValueError if no skill fits any of the terrains."""
        grids = {
            skill: EvaluationGrid((terrain,), (skill,), (self.level,), self.episodes, self.seed)
            for skill in self.skills
            if (terrain := hardest_terrain(skill, self.terrains)) is not None
        }
        if not grids:
            raise ValueError(
                f"none of the skills {', '.join(self.skills)} "
                f"is commanded on {', '.join(self.terrains)}"
            )
        return grids


@dataclass(frozen=True)
class Take:
    """An episode to show, the reason (`kind`), and how many of the episodes run succeeded."""

    result: EpisodeResult
    succeeded: int
    episodes: int
    policy: str = EXPERT
    kind: str = "median return"


def hardest_terrain(skill: str, terrains: Sequence[str]) -> str | None:
    """The hardest terrain with the skill's passage, or else for the skill; None if none fits."""
    passage = ALL_SKILLS[skill].passage
    with_passage = passage.terrains if passage else ()
    return max(
        (terrain for terrain in terrains if ALL_SKILLS[skill].commanded_on(terrain)),
        key=lambda terrain: (terrain in with_passage, TERRAINS[terrain].hardness),
        default=None,
    )


def record_takes(expert: Expert, plan: FilmPlan) -> list[Take]:
    """Run the plan's episodes and choose one per skill, in the plan's order."""
    grids = plan.grids()
    specs = [spec for grid in grids.values() for spec in grid.specs()]
    robot = expert.policy.robot
    threads = default_threads()
    with closing(LeggedEnvironment(robot, len(specs), threads=threads)) as env:
        results = list(run_episodes(env, expert.policy, specs, record=True))
    results.sort(key=lambda result: (result.episode_return, result.spec.index))
    takes = []
    for skill in grids:
        mine = [result for result in results if result.spec.skill == skill]
        takes.append(Take(mine[len(mine) // 2], sum(r.success for r in mine), len(mine)))
    return takes


def learner_takes(run_dir: Path, source: PolicySource, plan: LeggedEvaluation) -> list[Take]:
    """Episodes of an evaluation, run again: a typical one, and a typical failure if there is one.

    The first has the median return of the cell of median return. The failure is of the cell with
    the fewest successes: of its episodes without success, the one of median return. Without an
    evaluation there are no takes.
    """
    evaluation = read_record(run_dir / "evaluate" / f"{source.name}.json")
    if evaluation is None:
        return []
    returns = np.array(evaluation["returns"])
    specs = _ordered(plan.grid)
    count = returns.shape[1]
    cell = np.argsort(returns.mean(axis=1))[len(returns) // 2]
    typical = specs[cell * count + np.argsort(returns[cell])[count // 2]]
    worst = count * int(np.argmin([entry["success"] for entry in evaluation["cells"]]))
    tried = specs[worst : worst + min(count, _TRIED)]
    ran = _run_again(source, plan, [typical, *tried])
    failed = sorted((ran[s] for s in tried if not ran[s].success), key=lambda r: r.episode_return)
    tally = (round(evaluation["success"] * len(specs)), len(specs), source.name)
    takes = [Take(ran[typical], *tally)]
    return takes + [Take(r, *tally, "typical failure") for r in failed[len(failed) // 2 :][:1]]


def walk_take(run_dir: Path, source: PolicySource, plan: LeggedEvaluation) -> Take | None:
    """Of the median episodes of all cells of an evaluation, the success that goes farthest.

    Without a success that goes anywhere, the episode that goes farthest; None without an
    evaluation.
    """
    evaluation = read_record(run_dir / "evaluate" / f"{source.name}.json")
    if evaluation is None:
        return None
    returns = np.array(evaluation["returns"])
    count = returns.shape[1]
    middle = np.argsort(returns, axis=1)[:, count // 2]
    specs = _ordered(plan.grid)
    medians = [specs[cell * count + k] for cell, k in enumerate(middle.tolist())]
    ran = _run_again(source, plan, medians).values()
    ways = {result.spec: _distance_m(result) for result in ran}
    farthest = max(ran, key=lambda r: (r.success and ways[r.spec] > _WALK_M, ways[r.spec]))
    tally = (round(evaluation["success"] * len(specs)), len(specs), source.name)
    return Take(farthest, *tally)


def _ordered(grid: EvaluationGrid) -> list[EpisodeSpec]:
    """The episodes of a grid in the order of an evaluation's returns, cell after cell."""
    return sorted(grid.specs(), key=lambda s: (s.terrain, s.skill, s.level, s.index))


def _run_again(
    source: PolicySource, plan: LeggedEvaluation, specs: Sequence[EpisodeSpec]
) -> dict[EpisodeSpec, EpisodeResult]:
    """Episodes of an evaluation, run again and recorded."""
    learned = plan.load(source, _ROBOTS)[0]
    unique = list(dict.fromkeys(specs))
    with closing(plan.environment(plan.card_of(source), _ROBOTS)) as env:
        return {r.spec: r for r in run_episodes(env, learned, unique, record=True)}


def _distance_m(result: EpisodeResult) -> float:
    """From the first to the last position of a recorded episode."""
    assert result.record is not None, "the episode was run to be recorded"
    start, *_, end = result.record.state[:, :2]
    return float(np.linalg.norm(end - start))


def make_sheets(
    folder: Path,
    expert: Expert,
    plan: FilmPlan | None = None,
    learners: Sequence[tuple[PolicySource, LeggedEvaluation]] = (),
    filmed: str = "",
) -> None:
    """Draw contact sheets into `folder`, unless the sheets of this plan and these policies exist.

    `pictures.json` then holds the renderer, a record a sheet, and one of the film.

    Args:
        plan: the expert's sheets, one a skill; None for no such sheets.
        filmed: name of the learner of whom a film is drawn; "" for no film.

    Raises:
        RenderingError: MuJoCo cannot draw here.
        ValueError: a folder that cannot be written.
    """
    key = digest([plan, expert.hash, _DRAWING, [[s.key(), on] for s, on in learners], filmed])
    index = read_record(folder / PICTURE_INDEX) or {}
    names = [sheet["file"] for sheet in index.get("sheets", ())]
    names += [
        film[name] for film in filter(None, [index.get("film")]) for name in ("file", "still")
    ]
    files = [join_inside(folder, name) for name in names]
    if index.get("key") == key and all(file.is_file() for file in files):
        return
    takes = by_skill(record_takes(expert, plan) if plan is not None else [])
    for source, evaluated_on in learners:
        for take in learner_takes(folder.parent, source, evaluated_on):
            takes[f"{take.policy}-{take.kind.replace(' ', '-')}.png"] = take
    sheets = draw_sheets(folder, takes, expert.policy.robot)
    film = None
    for source, evaluated_on in learners:
        if source.name == filmed and (take := walk_take(folder.parent, source, evaluated_on)):
            film = _draw_film(folder, take, expert.policy.robot)
    record = {"key": key, "expert": expert.policy.name, "weights": expert.hash}
    record |= {"renderer": "mujoco", "film": film, "sheets": sheets}
    write_record(folder / PICTURE_INDEX, record)


def _draw_film(folder: Path, take: Take, robot: RobotCard) -> dict[str, object]:
    """Draw a film that a page holds, and a still of it; returns its record."""
    shot = film_shot(scene_of(take.result, robot), TILES_MS)
    frames = draw([shot], *_FILM_PX)[0]
    files = {"file": f"{_FILM}.webp", "still": f"{_FILM}.png"}
    moving = animation([(None, frames)], TILES_MS, "webp", MAX_EMBEDDED_BYTES)
    write_bytes_durably(join_inside(folder, files["file"]), moving)
    write_bytes_durably(join_inside(folder, files["still"]), still(frames[len(frames) // 2]))
    return {**_facts(take), **files}


def make_experiment_sheets(run_dir: Path, say: Callable[[str], None]) -> None:
    """Draw the sheets of each learner's first run, and of the expert that collected.

    Where MuJoCo cannot draw, `say` gets the reason and the experiment has no pictures.

    Raises:
        ValueError: no finished experiment, or a folder that cannot be written.
    """
    record = read_record(run_dir / "summary.json")
    if record is None:
        raise ValueError(f"no finished experiment in {run_dir}; `gaitforge run` makes one")
    if not (cells := record["cells"]):
        return
    collect = record["plan"]["collect"]
    levels = sorted({cell["level"] for cell in cells})
    skills, terrains = (tuple(dict.fromkeys(c[of] for c in cells)) for of in ("skill", "terrain"))
    film = FilmPlan(skills, terrains, levels[len(levels) // 2]) if collect else None
    name = record["plan"]["expert"] or (collect or {}).get("expert") or DEFAULT_EXPERT
    legged = {run["run"] for run in record["runs"] if run["task"] == LeggedEvaluation.kind}
    learners = []
    for run in [run for run in first_runs(record) if run in legged]:
        evaluation = read_record(run_dir / "evaluate" / f"{run}.json") or {}
        plan = plan_from_tree(LeggedEvaluation, evaluation["plan"])
        if plan.each_robot():
            say("no pictures: policies drive several robots")
            return
        learners.append((run_source(run_dir / "train" / run), plan))
    best = best_run(record)
    try:
        make_sheets(run_dir / PICTURES, load_expert(name), film, learners, best)
    except RenderingError as error:
        say(f"no pictures: {error}")


def draw_sheets(
    folder: Path, takes: Mapping[str, Take], robot: RobotCard, frames: int = SHEET_FRAMES
) -> list[dict[str, object]]:
    """Draw one contact sheet per take into the named files of a folder; returns their records.

    RenderingError where MuJoCo cannot draw.
    """
    shots = [_sheet_shot(scene_of(take.result, robot), frames) for take in takes.values()]
    pictures = draw(shots, *FRAME_PX)
    folder.mkdir(parents=True, exist_ok=True)
    for (name, take), shot, drawn in zip(takes.items(), shots, pictures, strict=True):
        write_bytes_durably(join_inside(folder, name), _sheet(take, shot, drawn))
    return [{"file": name, **_facts(take)} for name, take in takes.items()]


def by_skill(takes: Iterable[Take]) -> dict[str, Take]:
    """Takes by the names of their pictures."""
    return {f"{take.result.spec.skill}.png": take for take in takes}


def _sheet(take: Take, shot: Shot, frames: np.ndarray) -> bytes:
    return contact_sheet(heading(take), frames, shot.steps * CONTROL_DT_S)


def make_films(
    expert_name: str, folder: Path, plan: FilmPlan, formats: Sequence[str] = ("gif", "png")
) -> list[Path]:
    """Draw every skill of the plan in every format: "png" sheets, "gif", "webp", "mp4" animations.

    Raises:
        RenderingError: MuJoCo cannot draw here.
        ValueError: no such expert or format, or a folder that cannot be written.
    """
    unknown = [name for name in formats if name not in FORMATS]
    if unknown or not formats:
        raise ValueError(f"unknown format '{', '.join(unknown)}'; allowed: {', '.join(FORMATS)}")
    expert = load_expert(expert_name)
    takes = record_takes(expert, plan)
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for take in takes:
        scene = scene_of(take.result, expert.policy.robot)
        stills = sorted({name == "png" for name in formats})
        shots = [_sheet_shot(scene) if still else film_shot(scene) for still in stills]
        drawn = dict(zip(stills, zip(shots, draw(shots, *FRAME_PX), strict=True), strict=True))
        for name in formats:
            shot, frames = drawn[name == "png"]
            content = (
                _sheet(take, shot, frames)
                if name == "png"
                else animation([(heading(take), frames)], FILM_MS, name)
            )
            written.append(folder / f"{take.result.spec.skill}.{name}")
            write_bytes_durably(written[-1], content)
    return written


def heading(take: Take) -> Heading:
    """Heading over a take's pictures."""
    spec = take.result.spec
    result = take.result
    where = f"{spec.terrain}, level {spec.level}"
    outcome = "success" if result.success else "no success"
    if result.terminated:
        outcome = f"fall after {result.length * CONTROL_DT_S:.2f} s"
    tally = f"{take.succeeded} of {amount(take.episodes, 'episode')} succeed"
    title = f"{policy(take.policy)}: {spec.skill}"
    return Heading(title, where, describe(result), outcome, result.success, tally)


def describe(result: EpisodeResult) -> str:
    """The command of an episode and what stands on its track, in words."""
    passage = result.draws.passage
    text = ALL_SKILLS[result.spec.skill].describe(result.draws.command)
    if passage is not None:
        opening = f"{passage.opening_m:.2f} m"
        depth = f"{passage.depth_m:.2f} m deep"
        obstacle = f"bar {opening} above ground" if passage.kind == "bar" else f"gap of {opening}"
        text += f"; {obstacle}, {depth}"
    return text


def _facts(take: Take) -> dict[str, object]:
    spec = take.result.spec
    result = take.result
    return {name: getattr(spec, name) for name in ("skill", "terrain", "level", "seed")} | {
        "command": describe(result),
        "success": result.success,
        "return": result.episode_return,
        "succeeded": take.succeeded,
        "episodes": take.episodes,
        "policy": take.policy,
        "caption": f"{take.kind}: {spec.skill} on {spec.terrain}, level {spec.level}; "
        f"return {result.episode_return:.2f}, {heading(take).outcome}",
    }


def _sheet_shot(scene: Scene, frames: int = SHEET_FRAMES) -> Shot:
    return Shot(scene, frame_steps(len(scene.state), frames))


def film_shot(scene: Scene, frame_ms: int = FILM_MS) -> Shot:
    """The whole scene, a frame every `frame_ms`."""
    return Shot(scene, np.arange(0, len(scene.state), round(frame_ms / 1000 / CONTROL_DT_S)))


STORED_FRAMES = 4


def _replayed(selection: Selection) -> tuple[dict[int, EpisodeResult], RobotCard]:
    """Stored episodes by id, simulated again and recorded, with the success that is stored."""
    try:
        env = replay_environment(selection, len(selection))
    except ValueError as error:
        why = str(error).replace(selection.store.address, "the store")
        raise RenderingError(f"the episodes cannot be simulated here: {why}") from None
    results = {}
    with closing(env):
        # As collected: of a trimmed episode or a new reward, nothing would repeat.
        stored = stored_episodes(selection.as_collected())
        for episode, result, difference in replayed(env, stored):
            if difference:
                raise RenderingError("the episodes do not repeat here bit for bit")
            row = episode.row
            results[row["episode"]] = replace(result, success=row["success"])
    return results, env.robot


def stored_takes(selection: Selection) -> tuple[dict[str, Take], RobotCard]:
    """Stored median-return episodes by `SKILL.png`, of the first robot if there are several.

    RenderingError if they are not the legged task's own, or do not repeat here.
    """
    if "skill" not in selection.catalog.column_names:
        raise RenderingError("only episodes that gaitforge collected with legged robots are drawn")
    selection = by_robot(selection)[0]
    tallies = _typical(selection)
    chosen = selection.rows[np.isin(selection.episode_ids(), list(tallies))]
    results, robot = _replayed(selection.with_rows(chosen))
    takes = (Take(results[k], *tallies[k], episode_name(k)) for k in tallies)
    return by_skill(takes), robot


def _typical(selection: Selection) -> dict[int, tuple[int, int]]:
    """Each skill's median-return episode that the expert drove -> its (successes, episodes)."""
    names = ["policy_hash"] if "policy_hash" in selection.catalog.column_names else []
    names += ["episode", "skill", "return", "success", "expert_hash"]
    rows = selection.catalog.rows(selection.rows, names).to_pylist()
    skills: dict[str, list[dict[str, Any]]] = {}
    for row in sorted(rows, key=lambda row: row["return"]):
        if row.get("policy_hash") in (None, row["expert_hash"]):
            skills.setdefault(row["skill"], []).append(row)
    return {
        mine[len(mine) // 2]["episode"]: (sum(row["success"] for row in mine), len(mine))
        for _, mine in sorted(skills.items())
    }


def draw_stored(selection: Selection, folder: Path) -> list[dict[str, object]]:
    """Draw a sheet of one typical stored episode per skill; returns their records.

    RenderingError as by `stored_takes`, or where MuJoCo cannot draw.
    """
    sheets = draw_sheets(folder, *stored_takes(selection), STORED_FRAMES)
    return [{**sheet, "episode": sheet["policy"]} for sheet in sheets]
