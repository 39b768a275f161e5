"""Files with texts that name code: a canary that sings when it is imported or called."""

import copy
import json
import shutil
import struct
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from gaitforge.common.trust import pieces, trusted
from gaitforge.datasets import DatasetError
from gaitforge.datasets.catalog.catalog import Manifest, json_sha256
from gaitforge.datasets.layout import CATALOG, ROOT_FILE
from gaitforge.datasets.storage.records import ATTRIBUTE, DIGEST, read_root
from gaitforge.pipeline.cli.main import parsed
from gaitforge.pipeline.cli.parsing.runners import named_code
from tests.pipeline.command_line import call

CANARY = """
from pathlib import Path

SANG = Path(__file__).with_name("sang")
SANG.write_text("imported")


def thing(*arguments, **named):
    SANG.write_text("called")
"""
NAMES = (
    "canary:thing",
    "canary:Thing-v0,max_steps=3",
    "Pendulum-v1,wrapper=canary:thing",
)
"""Texts that name the canary, as a class or function, a registered id, and a wrapper."""


def leaves(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all texts in a JSON value."""
    if isinstance(tree, str):
        yield path
    elif isinstance(tree, dict | list):
        for key, inner in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from leaves(inner, (*path, key))


def replaced(tree: Any, path: tuple[Any, ...], text: str) -> Any:
    """A copy of a JSON value with another text at a path."""
    tree = copy.deepcopy(tree)
    inner = tree
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = text
    return tree


def read_json(file: Path) -> Any:
    """A JSON file's value, or a checkpoint's card."""
    if file.suffix == ".json":
        return json.loads(file.read_text())
    return json.loads(_header(file.read_bytes())[0]["__metadata__"]["card"])


def with_json(file: Path, tree: Any) -> bytes:
    """The content of a file with another value, see `read_json`."""
    if file.name == "zarr.json":  # a hostile writer makes the checksum, too
        record = tree["attributes"][ATTRIBUTE]
        own = {name: value for name, value in record.items() if name != DIGEST}
        tree["attributes"][ATTRIBUTE] = own | {DIGEST: json_sha256(own)}
    if file.suffix == ".json":
        return json.dumps(tree).encode()
    header, tensors = _header(file.read_bytes())
    header["__metadata__"]["card"] = json.dumps(tree)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + tensors


@contextmanager
def replacing(file: Path, tree: Any) -> Iterator[None]:
    """Give a file another value for the time of the block; a store's parts have its new schema."""
    catalog = (file.parent / CATALOG).glob("*.parquet") if file.name == ROOT_FILE else ()
    whole = {path: path.read_bytes() for path in (file, *catalog)}
    file.write_bytes(with_json(file, tree))
    try:
        with suppress(DatasetError):  # no schema any more
            for path in whole.keys() - {file}:
                table, schema = pq.read_table(path), read_root(file.parent).schema
                metadata = table.schema.metadata
                commit = replace(Manifest.from_metadata(metadata), schema_hash=schema.hash)
                metadata |= commit.to_metadata()
                pq.write_table(table.replace_schema_metadata(metadata), path)
        yield
    finally:
        for path, content in whole.items():
            path.write_bytes(content)


def _header(content: bytes) -> tuple[Any, bytes]:
    length = struct.unpack("<Q", content[:8])[0]
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def assert_no_text_imports(
    place: Path,
    name: str,
    readers: Sequence[tuple[str, ...]],
    refused: set[str],
    capfd: pytest.CaptureFixture[str],
) -> None:
    """No text of a file is imported or called by the commands that read it.

    Texts that may name code meet every reader. Of the others those of a kind, of the same last key,
    meet the readers in turn, until each has met one.

    Args:
        place: the present folder, with the canary and the file `name`, a pattern.
        refused: names of values that are refused, in some command, as names of code.
    """
    [file] = place.glob(name)
    tree = read_json(file)
    paths = list(leaves(tree))
    assert paths
    refusals = set[str]()
    met = Counter[str]()
    for path in paths:
        telling = path[-1] in ("env", "kind", "task", "model", "policies", "policy", "expert")
        kind = next(key for key in reversed(path) if isinstance(key, str))
        asked = readers if telling else readers[met[kind] : met[kind] + 1]
        met[kind] += 1
        for text in NAMES if telling else NAMES[:1]:
            with replacing(file, replaced(tree, path, text)):
                for words in asked:
                    sys.modules.pop("canary", None)
                    call(*(word.format(file=file) for word in words))
                    assert not Path("sang").exists(), f"{path} = {text}: {words}"
                    error = capfd.readouterr().err
                    assert "Traceback" not in error
                    if "names the code" in error:
                        refusals.add(str(path[-1]))
                    shutil.rmtree("out", ignore_errors=True)
    assert trusted() == []
    assert refusals >= refused, "the texts reach what would import them"


def assert_trust_imports(file: Path, words: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    """A kind of model that a checkpoint names is imported if the command line trusts it."""
    whole, tree = file.read_bytes(), read_json(file)
    file.write_bytes(with_json(file, replaced(tree, ("model", "kind"), NAMES[0])))
    try:
        for more, sings in (
            ((), False),
            (("--trust", NAMES[0]), True),
            (("--trust", "x:y"), False),
        ):
            sys.modules.pop("canary", None)
            Path("sang").unlink(missing_ok=True)
            assert call(*words, *more) == 2
            assert Path("sang").exists() == sings
            said = "run names the code 'canary:thing'" in capfd.readouterr().err
            assert said != sings
    finally:
        file.write_bytes(whole)
        Path("sang").unlink(missing_ok=True)


def code_of(words: list[str]) -> set[str]:
    """The pieces of code that a command line names."""
    return {part for text in named_code(parsed(words)) for part in pieces(text)}


DRY = ("--runner", "slurm", "--dry-run")
SMALL = ("--model", "mlp", "--steps", "1", "--batch-size", "2")
