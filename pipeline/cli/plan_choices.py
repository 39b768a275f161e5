"""Plans from what people choose: a preset, some values in its place, and settings by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from collectors.legged.data import COLLECTION_PRESETS, StoredForm
from flows.tasks.legged import LeggedPlan
from pipeline.cli.settings import override


def collection_plan(
    preset: str,
    grid: Mapping[str, Any],
    top: Mapping[str, Any],
    settings: Sequence[str],
    form: Mapping[str, Any] | None = None,
) -> LeggedPlan:
    """The plan of a preset with some of its grid's and of its own values replaced.

    Args:
        grid, top, form: field -> value of the grid, the plan and what it stores; None leaves the
            field as it is. settings: as `override`.

    Raises:
        ValueError: no such preset, or values that the plan refuses.
    """
    if preset not in COLLECTION_PRESETS:
        raise ValueError(f"unknown preset '{preset}'; presets: {', '.join(COLLECTION_PRESETS)}")
    chosen = with_chosen(COLLECTION_PRESETS[preset], grid)
    plan = LeggedPlan(grid=chosen, form=with_chosen(StoredForm(), form or {}))
    return override(with_chosen(plan, top), settings)


def with_chosen(plan: Any, chosen: Mapping[str, Any]) -> Any:
    """A frozen dataclass with those fields replaced whose value is not None."""
    return replace(plan, **{name: value for name, value in chosen.items() if value is not None})
