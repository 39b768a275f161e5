"""What `--json` prints has keys that programs can use as names: snake_case."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pipeline.command_line import Run, tried

KEY = re.compile(r"[a-z][a-z0-9_]*")
NAMES = ("bytes", "parts", "versions")
"""Keys whose value is by names of files, parts and packages."""


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


COMMANDS = """
formats --json
models --json
expert list --json
robot list --json
robot check a1 --json
sim list --json
run --list --json
info STORE --json
info STORE --columns --json
query STORE --json
query STORE --list --json
query STORE --group-by terrain,skill --json
dataset log STORE --json
tag STORE --json
verify STORE --json
status STORE --json
status RUN --json
jobs list STORE --json
plan STORE
gc STORE --json
export RUN OUT --formats pt2 --json
dataset split STORE --fractions a=0.5,b=0.5 --out OUT --json
"""


@pytest.mark.parametrize("command", tried(COMMANDS, "JSON"))
def test_keys_are_snake_case(
    run: Run, store: Path, trained: Path, tmp_path: Path, command: str
) -> None:
    places = {"STORE": store, "RUN": trained, "OUT": tmp_path / "out"}
    outcome = run(*(places.get(word, word) for word in command.split()))
    assert outcome.code in (0, 1), outcome.err
    assert list(wrong_keys(json.loads(outcome.out))) == []
