"""The demo as one Prefect flow: the same road, every stage a task.

Prefect watches and records; correctness does not lean on it. Stages are idempotent by the files
they leave, so caching is off, and a run that died is resumed by running it again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from prefect import flow, task
from prefect.artifacts import create_table_artifact
from prefect.cache_policies import NO_CACHE

from flows.demo import DemoPlan, run_demo
from flows.progress import Reporter
from flows.records import to_tree


def run_demo_flow(plan: DemoPlan, out: Path, reporter: Reporter) -> dict[str, Any]:
    """`flows.demo.run_demo` under Prefect, with the policies' table as an artifact.

    The run's parameters in Prefect are the folder and the plan as JSON.
    """

    @flow(name="gaitforge-demo", persist_result=False)
    def gaitforge_demo(out: str, plan: dict[str, Any]) -> dict[str, Any]:
        summary = road()
        rows = [{"policy": name, **record} for name, record in summary["policies"].items()]
        create_table_artifact(rows, key="policies", description="closed-loop evaluation")
        return summary

    def road() -> dict[str, Any]:
        return run_demo(plan, out, reporter, _stage)

    return gaitforge_demo(str(out), to_tree(asdict(plan)))


def _stage(name: str, work: Callable[[], Any]) -> Any:
    return task(name=name, cache_policy=NO_CACHE, persist_result=False)(work)()
