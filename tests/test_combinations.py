"""Other projects' packages beside this one in one environment: solved from its own ranges.

docs/install.md has the same table.
"""

import sys
from pathlib import Path

import pytest

from tests.datasets.formats.peer_environment import Unavailable, solve

INSTALL = (Path(__file__).resolve().parent.parent / "docs/install.md").read_text()
COMBINATIONS = {
    "lerobot==0.6.1": "all",
    "mjlab==1.6.0": "sim,learn,experts",
    "isaaclab==3.0.0": "sim,learn,experts",
    "lerobot==0.6.1 mjlab==1.6.0": "sim,learn,experts",
    "minari": "all",
    "torchrl": "all",
    "robomimic": "all",
    "trackio==0.43.0": "all",
    "torch==2.11.0": "all",
    "torch==2.9.1": "all",
}
"""What is asked for -> extras of this project that it is solved with."""


@pytest.mark.slow
@pytest.mark.parametrize("asked", COMBINATIONS)
def test_it_can_be_installed_with(asked: str, tmp_path: Path) -> None:
    wanted = tmp_path / "wanted.in"
    wanted.write_text("\n".join(asked.split()))
    solved = tmp_path / "solved.txt"
    try:
        solve("3.12", COMBINATIONS[asked].split(","), wanted, "-o", solved)
    except Unavailable as reason:
        pytest.skip(str(reason))
    lines = solved.read_text().splitlines()
    for text in asked.split():
        assert any(line.startswith(text if "==" in text else f"{text}==") for line in lines)


@pytest.mark.slow
def test_what_cannot_be_solved_fails(tmp_path: Path) -> None:
    wanted = tmp_path / "wanted.in"
    wanted.write_text("numpy<2")
    with pytest.raises(AssertionError, match="unsatisfiable"):
        solve(sys.executable, ["all"], wanted, "-o", tmp_path / "solved.txt")


def test_every_combination_is_documented() -> None:
    for asked, extras in COMBINATIONS.items():
        [row] = [line for line in INSTALL.splitlines() if line.startswith(f"| `{asked}` |")]
        assert f"`{extras}`" in row
