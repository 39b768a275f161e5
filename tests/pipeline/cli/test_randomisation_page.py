"""The commands of docs/howto/randomisation.md, in their order and small."""

import re
import shlex
from pathlib import Path

import pytest

from gaitforge.datasets import open_store
from gaitforge.flows.stages.dataset_plan import dataset_plan
from tests.pipeline.command_line import Run

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[3] / "docs" / "howto" / "randomisation.md"
COMMANDS = [
    line
    for block in re.findall(r"^```\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    for line in block.splitlines()
    if not line.startswith("#")
]
SMALL = {
    "collect": "--parts 0 --set grid.episodes_per_part=40 --threads 1",
    "evaluate": "--episodes 2 --threads 1",
    "run": "--episodes 1 --terrain flat --skill run --set 'conditions={\"friction\":[0.2]}'",
    "counterfactual": "--threads 1",
}


def test_the_commands_of_the_page_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    monkeypatch.chdir(tmp_path)

    def done(line: str, more: str = "") -> str:
        outcome = run(*shlex.split(line)[1:], *shlex.split(more))
        assert outcome.code == 0, (line, outcome.err)
        return outcome.out

    done("gaitforge collect data/legged.zarr", SMALL["collect"])
    done("gaitforge train data/legged.zarr --out runs/walk --model mlp --steps 3")
    shown = {}
    for line in COMMANDS:
        command, _, file = line.partition(" > ")
        verb = command.split()[1]
        small = "--threads 1" if "--from-plan" in command else SMALL.get(verb, "")
        shown[verb] = done(command, small)
        if file:
            Path(file).write_text(shown[verb])
    assert "the same content as planned" in shown["collect"]
    assert "unpaired" in shown["query"]
    assert Path("runs/robust/report.html").is_file()
    again, before = (dataset_plan(f"data/{name}.zarr") for name in ("again", "legged"))
    assert again["parts"] == before["parts"]
    ice = open_store("data/ice.zarr").select().episodes("friction")["friction"].to_numpy()
    assert ice.min() >= 0.1
    assert ice.max() <= 0.3
