"""What `--json` prints is JSON that any program reads, whatever a store holds."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from gaitforge.datasets import Store, open_store
from tests.datasets.making import part_input, small_schema
from tests.pipeline.command_line import Run


@pytest.fixture(scope="module")
def spoilt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with NaN and infinity in a column, an edit, and the record of that edit."""
    made = Store.create(tmp_path_factory.mktemp("spoilt") / "s.zarr", small_schema())
    given = part_input((4, 5, 6))
    columns = {**given["episodes"], "q": [float("nan"), float("inf"), 0.5]}
    made.write_part("p", **{**given, "episodes": columns})
    values = np.array([float("nan")] * 2)
    rows = pa.table({"part": ["p", "p"], "row": [0, 1], "old": values})
    origin = {"command": "annotate", "arguments": {"old": float("nan")}, "episodes": 2}
    made.edit("annotate", {}, rows, origin, ())  # as older versions allowed
    return made.path


def strict(text: str) -> object:
    def refuse(name: str) -> object:
        raise AssertionError(f"{name} is no JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.mark.parametrize(
    "command",
    [
        "query {} --list --show q,old --json",
        "query {} --group-by q --json",
        "query {} --group-by old,terrain --json",
        "dataset log {} --json",
        "info {} --json",
        "info {} --columns --json",
        "verify {} --json",
        "dataset split {} --fractions a=0.5,b=0.5 --out {}.sides --json",
    ],
)
def test_json_is_strict(run: Run, spoilt: Path, command: str) -> None:
    told = run(*[word.format(spoilt) for word in command.split()])
    assert told.code in (0, 1), told.err
    assert strict(told.out) is not None


def test_a_card_and_pages_are_made_of_such_a_store(run: Run, spoilt: Path, tmp_path: Path) -> None:
    assert run("card", spoilt, "--out", tmp_path / "card").code == 0
    assert strict((tmp_path / "card" / "card.json").read_text())


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1e400"])
def test_an_annotation_that_is_no_number_is_one_line(run: Run, spoilt: Path, value: str) -> None:
    before = open_store(spoilt).info()
    told = run("dataset", "annotate", spoilt, "--terrain", "flat", f"q={value}")
    assert (told.code, len(told.err.splitlines())) == (2, 1)
    assert "is no finite number" in told.err
    assert open_store(spoilt).info() == before
    words = run("query", spoilt, "--where", "q > 1", "--list", "--json")
    assert [row["episode"] for row in json.loads(words.out)] == ["1"]
