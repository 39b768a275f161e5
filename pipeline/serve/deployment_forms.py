"""Types of the deployments' parameters: what a form offers, and what a server refuses.

A parameter's JSON schema is made from its type here, so a value outside it is refused when a run is
asked for. What depends on several values the plan checks as the run begins.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Any

from pydantic import Field, StringConstraints, WithJsonSchema

from collectors.legged.data import COLLECTION_PRESETS
from collectors.scenarios.skills import SKILLS
from collectors.scenarios.terrains import N_LEVELS, TERRAINS
from datasets.formats import FORMATS as DATA_FORMATS
from learners.checkpoint import KEPT
from learners.deploy.export import FORMATS
from learners.models.registry import PRESETS
from learners.training.objectives import OBJECTIVES

MAX_PARTS, MAX_EPISODES = 100_000, 10_000
"""Of a plan, and of a part: ten times what a large dataset needs, so that a slip is noticed."""

MAX_SEED = 2**31 - 1
MAX_THREADS = 512
NO_STEPS, MAX_STEPS = 1, 100_000_000


def _one_of(names: Collection[str]) -> Any:
    return WithJsonSchema({"type": "string", "enum": list(names)})


Place = Annotated[str, StringConstraints(min_length=1, strip_whitespace=True)]
"""A folder as the worker sees it; for stores also s3://bucket/prefix."""

Preset = Annotated[str, _one_of(COLLECTION_PRESETS)]
Terrains = list[Annotated[str, _one_of(TERRAINS)]]
Skills = list[Annotated[str, _one_of(SKILLS)]]
Levels = list[Annotated[int, Field(ge=0, lt=N_LEVELS)]]
Parts = Annotated[int, Field(ge=0, le=MAX_PARTS)]
Episodes = Annotated[int, Field(ge=0, le=MAX_EPISODES)]
Seed = Annotated[int, Field(ge=0, le=MAX_SEED)]
Threads = Annotated[int, Field(ge=1, le=MAX_THREADS)]
Settings = list[Annotated[str, StringConstraints(pattern=r"^[\w.]+=.*$")]]
"""NAME=VALUE, as `--set` takes them."""

Model = Annotated[str, _one_of(PRESETS)]
Objective = Annotated[str, _one_of(OBJECTIVES)]
Formats = list[Annotated[str, _one_of(FORMATS)]]
DataFormat = Annotated[str, _one_of(DATA_FORMATS)]
Checkpoint = Annotated[str, _one_of(KEPT)]
Steps = Annotated[int, Field(ge=NO_STEPS, le=MAX_STEPS)]
