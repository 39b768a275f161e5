"""What `gaitforge expert film` does."""

from __future__ import annotations

import argparse

from collectors.experts.expert import DEFAULT_EXPERT
from pipeline.report.pictures import FilmPlan, make_films


def film(arguments: argparse.Namespace) -> int:
    """Draw an expert's skills as contact sheets and animations."""
    chosen = {
        "skills": arguments.skill,
        "terrains": arguments.terrain,
        "level": arguments.level,
        "seed": arguments.seed,
    }
    plan = FilmPlan(**{name: value for name, value in chosen.items() if value is not None})
    expert = arguments.expert or DEFAULT_EXPERT
    for path in make_films(expert, arguments.out, plan, arguments.format):
        print(f"{path}  {path.stat().st_size / 1000:,.0f} kB")
    return 0
