"""The demo as one Prefect flow: the same road, every stage a task.

Prefect watches and records; correctness does not lean on it. Stages are idempotent by the files they leave, so caching
is off, and a run that died is resumed by running it again.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from prefect import flow, task
from prefect.artifacts import create_table_artifact
from prefect.cache_policies import NO_CACHE

from flows.demo import DemoPlan, run_demo
from flows.progress import Reporter


def _stage(name: str, work: Callable[[], Any]) -> Any:
    return task(work, name=name, cache_policy=NO_CACHE, persist_result=False)()


@flow(name="gaitforge-demo", validate_parameters=False, persist_result=False)
def demo_flow(plan: DemoPlan, out: Path, reporter: Reporter) -> dict[str, Any]:
    """`flows.demo.run_demo` under Prefect, with the policies' table as an artifact."""
    summary = run_demo(plan, out, reporter, _stage)
    rows = [{"policy": name, **record} for name, record in summary["policies"].items()]
    create_table_artifact(rows, key="policies", description="closed-loop evaluation")
    return summary
