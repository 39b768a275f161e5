"""What every format that is here is tried with: the tests' own, and those of the plug-ins.

A plug-in with formats has `tests/format_cases.py` with their `CASES`.
"""

from importlib import import_module
from pathlib import Path

from tests.datasets.formats import rows_format
from tests.datasets.formats.format_stores import (
    PLAIN_FIELDS,
    Case,
    gone,
    halved,
    plain_store,
    text,
)

PLUGINS = Path(__file__).resolve().parents[3] / "plugins"
ROWS = Case(
    plain_store,
    PLAIN_FIELDS,
    variants={
        "without notes": Case(plain_store, PLAIN_FIELDS, ("length",), False, {"notes": False}),
    },
    spoil=rows_format.spoil,
    damages={
        "no schema": gone("schema.json"),
        "a schema that is no JSON": text("schema.json", "{"),
        "half of the catalog": halved("episodes.parquet"),
        "half of the actions": halved("action.bin"),
        "no actions": gone("action.bin"),
    },
    links=("schema.json", "episodes.parquet", "action.bin"),
)

CASES: dict[str, Case] = {rows_format.NAME: ROWS}
for _file in sorted(PLUGINS.glob("*/tests/format_cases.py")):
    _module = f"gaitforge.plugins.{_file.parents[1].name}.tests.format_cases"
    CASES |= import_module(_module).CASES
VARIANTS = {name: (name, case) for name, case in CASES.items()} | {
    f"{name} {which}": (name, variant)
    for name, case in CASES.items()
    for which, variant in case.variants.items()
}
"""Name -> a format and what of it comes back, with options of the export too."""
