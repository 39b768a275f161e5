"""HTML pages from the templates of this package."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from pipeline.report.wording import count, duration, fixed, size, words

WORDING = {"count": count, "duration": duration, "fixed": fixed, "size": size, "words": words}


def page_template(name: str, **filters: Callable[..., Any]) -> Template:
    """A template that escapes what it shows and refuses names that it is not given.

    Args:
        filters: beside those of `WORDING`, which every page has.
    """
    environment = Environment(
        loader=PackageLoader("pipeline.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(WORDING | filters)
    return environment.get_template(name)
