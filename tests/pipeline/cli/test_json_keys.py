"""What `--json` prints has keys that programs can use as names: snake_case."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pipeline.command_line import Run

KEY = re.compile(r"[a-z][a-z0-9_]*")
NAMES = ("parts",)
"""Keys whose value is a table by names that users choose."""


def wrong_keys(tree: object, path: str = "") -> Iterator[str]:
    """The keys of a JSON tree that are not snake_case, each with where it is."""
    if isinstance(tree, list):
        for item in tree:
            yield from wrong_keys(item, path)
    elif isinstance(tree, dict):
        for key, value in tree.items():
            if not KEY.fullmatch(key) and path.rpartition(".")[2] not in NAMES:
                yield f"{path}.{key}"
            yield from wrong_keys(value, f"{path}.{key}")


@pytest.mark.parametrize(
    "command",
    [
        "formats",
        "models",
        "expert list",
        "robot list",
        "robot check a1",
        "sim list",
        "gym list",
        "run --list",
        "info STORE",
        "info STORE --columns",
        "query STORE",
        "query STORE --list",
        "query STORE --group-by terrain,skill",
        "dataset log STORE",
        "dataset diff STORE STORE",
        "tag STORE",
        "verify STORE",
        "doctor STORE",
        "plan STORE",
        "status STORE",
        "status RUN",
        "jobs list STORE",
        "train STORE --out RUN",
    ],
)
def test_keys_are_snake_case(run: Run, store: Path, trained: Path, command: str) -> None:
    places = {"STORE": str(store), "RUN": str(trained)}
    outcome = run(*(places.get(word, word) for word in command.split()), "--json")
    assert outcome.code in (0, 1), outcome.err
    assert list(wrong_keys(json.loads(outcome.out))) == []
