"""What a folder's plan promises, for plans of every kind."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gaitforge.flows.experiments.claim import Claim, claim
from gaitforge.flows.experiments.staged_plan import StagedPlan
from gaitforge.flows.stages.stage import RecordedStage, at_work


def put(plan: Claim | StagedPlan, out: Path) -> None:
    """Claim a folder for a plan."""
    if isinstance(plan, Claim):
        claim(plan, out)
    else:
        plan.claim(out)


def assert_alone(there: Any, new: Any, out: Path) -> None:
    """A folder takes its own plan again, and no other one."""
    put(there, out)
    before = (out / "plan.json").read_bytes()
    if there is new:
        put(new, out)
    else:
        with pytest.raises(ValueError, match="holds") as refusal:
            put(new, out)
        assert "\n" not in str(refusal.value)
    assert (out / "plan.json").read_bytes() == before


def assert_grown(plan: Any, change: Callable[[Any], Any], out: Path) -> None:
    """A folder takes a plan that adds to its own, unless that one is at work."""
    put(plan, out)
    before = (out / "plan.json").read_bytes()
    with (
        at_work(out, [RecordedStage("train", "key", run=print)]),
        pytest.raises(ValueError, match="stages of"),
    ):
        put(change(plan), out)
    assert (out / "plan.json").read_bytes() == before
    with at_work(out, [RecordedStage("train", "key", run=print)]):
        put(plan, out)  # the plan that is at work may be asked for again
    put(change(plan), out)
    assert (out / "plan.json").read_bytes() != before
    assert [path.name for path in out.iterdir()] == ["plan.json"]


def assert_another(plan: Any, change: Callable[[Any], Any], complaint: str, out: Path) -> None:
    """A folder refuses a plan that leaves something of its own out, or has it otherwise."""
    put(plan, out)
    before = (out / "plan.json").read_bytes()
    with pytest.raises(ValueError, match=complaint) as refusal:
        put(change(plan), out)
    assert "\n" not in str(refusal.value)
    assert (out / "plan.json").read_bytes() == before
