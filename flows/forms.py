"""Types of the flows' parameters, from which Prefect makes a form and its checks.

What depends on several values is checked by the plan as the run begins.
"""

from collections.abc import Collection
from typing import Annotated, Any

from pydantic import Field, StringConstraints, WithJsonSchema

from gaitforge.collectors.legged.data import COLLECTION_PRESETS, MAX_EPISODES, MAX_PARTS
from gaitforge.collectors.scenarios.skills import SKILLS
from gaitforge.collectors.scenarios.terrains import N_LEVELS, TERRAINS
from gaitforge.datasets.formats import FORMATS as DATA_FORMATS
from gaitforge.flows.tasks.interface import MAX_WORKERS
from gaitforge.flows.tasks.registry import TASKS
from gaitforge.learners.deploy.onnx_policy import PROGRAMS
from gaitforge.learners.models.registry import PRESETS
from gaitforge.learners.run_files import KEPT
from gaitforge.learners.training.objectives import OBJECTIVES

MAX_SEED = 2**31 - 1
MAX_LISTED = 1000
NO_STEPS, MAX_STEPS = 1, 100_000_000

NONE: list[Any] = []
"""Default of lists: the preset's or the plan's own values. Never changed."""


def one_of(names: Collection[str]) -> Any:
    """What makes a field a choice of these names."""
    return WithJsonSchema({"type": "string", "enum": list(names)})


Place = Annotated[str, StringConstraints(min_length=1, strip_whitespace=True)]
"""A folder as the worker sees it; for stores also s3://bucket/prefix."""

Task = Annotated[str, one_of(TASKS)]
Preset = Annotated[str, one_of(COLLECTION_PRESETS)]
Terrains = list[Annotated[str, one_of(TERRAINS)]]
Skills = list[Annotated[str, one_of(SKILLS)]]
Levels = list[Annotated[int, Field(ge=0, lt=N_LEVELS)]]
Parts = Annotated[int, Field(ge=0, le=MAX_PARTS)]
Episodes = Annotated[int, Field(ge=0, le=MAX_EPISODES)]
Seed = Annotated[int, Field(ge=0, le=MAX_SEED)]
Threads = Annotated[int, Field(ge=1, le=MAX_WORKERS)]
Settings = list[Annotated[str, StringConstraints(pattern=r"^[\w.]+=.*$")]]
"""NAME=VALUE, as `--set` takes them."""

Listed = Annotated[int, Field(ge=0, le=MAX_LISTED)]
"""Episodes that a run shows; `gaitforge query --parquet` writes all of them."""

Model = Annotated[str, one_of(PRESETS)]
Objective = Annotated[str, one_of(OBJECTIVES)]
Formats = list[Annotated[str, one_of(PROGRAMS)]]
DataFormat = Annotated[str, one_of(DATA_FORMATS)]
Checkpoint = Annotated[str, one_of(KEPT)]
Steps = Annotated[int, Field(ge=NO_STEPS, le=MAX_STEPS)]


def grid_values(
    terrains: list[str], skills: list[str], levels: list[int], **values: Any
) -> dict[str, Any]:
    """A form's values for a grid; an empty list or a 0 (but for the seed) keeps the plan's own."""
    lists = {"terrains": terrains, "skills": skills, "levels": levels}
    found = {name: tuple(value) or None for name, value in lists.items()}
    kept = {name: value for name, value in values.items() if value or name == "seed"}
    return found | kept
