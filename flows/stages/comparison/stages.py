"""A comparison in stages, of which many can run in parallel: each run is one."""

from functools import partial
from pathlib import Path

from gaitforge.flows.records.records import digest, prepare_folder
from gaitforge.flows.stages.comparison.legged import (
    ComparisonPlan,
    compared_run,
    evaluate_expert,
    measure_pace,
    pace_file,
    run_comparison,
    selected,
)
from gaitforge.flows.stages.comparison.runs import COMPARISON
from gaitforge.flows.stages.staging import Stage


def comparison_stages(plan: ComparisonPlan, store_path: Path | str, out: Path) -> list[Stage]:
    """The expert's evaluation, with a time limit every model's speed, every run, and the summary.

    Raises:
        ValueError: as `run_comparison`.
    """
    episodes = selected(plan, store_path).hash
    prepare_folder(out)
    first = Stage(
        "evaluate expert",
        digest([plan.evaluate, plan.expert]),
        partial(evaluate_expert, plan, out),
        (out / "evaluate/expert.json",),
    )
    stages, timed = [first], plan.train_s is not None
    for model in plan.models if timed else ():
        key = digest([plan.train_s, plan.train_config(model, 0), episodes])
        work = partial(measure_pace, model, plan, store_path, out)
        stages.append(Stage(f"time {model}", key, work, (pace_file(out, model),)))
    for run in plan.runs():
        config = plan.train_config(run.model, run.seed)
        key = digest([plan.train_s, config, plan.config, plan.evaluate, episodes])
        outputs = run.record(out, "test"), run.record(out, "evaluate")
        after = (first.name, *([f"time {run.model}"] if timed else []))
        work = partial(compared_run, run, plan, store_path, out)
        stages.append(Stage(run.name, key, work, outputs, after, place=run.folder(out)))
    names, work = (
        tuple(stage.name for stage in stages),
        partial(run_comparison, plan, store_path, out),
    )
    return [*stages, Stage("compare", digest([plan, episodes]), work, (out / COMPARISON,), names)]
