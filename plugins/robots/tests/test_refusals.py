"""Wrong input of the plug-in's commands: exit code 2, one line that says why, and nothing made."""

import shlex
from pathlib import Path

import pytest

from gaitforge.plugins.robots.tests.menagerie_files import menagerie_file
from tests.pipeline.command_line import Run, assert_refused

COMMANDS = """
expert import gone --name new | no policy | .onnx, .pt
expert import file.json --name new | no policy
expert template mujoco | no template 'mujoco'; allowed: isaaclab, legged_gym, mjlab
expert check aliengo-locomotion | is not imported; `gaitforge evaluate
expert check nobody | no expert 'nobody' | expert import
expert check empty | no expert 'empty' | expert import
expert trust empty | empty holds no imported-expert.json
robot init gone --out new | gone: there is no such file
robot init words.xml --out new | words.xml: it cannot be read as XML: syntax error
robot init page.xml --out new | page.xml: it is no MJCF or URDF: its root is <html>
robot init still.urdf --out new | still.urdf: it has no moving joints
robot init beast.xml --out new --limit calf=1:-1 | --limit LF_KFE=1:-1: the first has to be the
robot init beast.xml --out new --damping hip=-1 | the damping of LF_HAA in beast.xml is -1, below 0
robot init beast.xml --out new --armature calf=-0.1 | the armature of LF_KFE in beast.xml is -0.1
robot init beast.xml --out new --knees outward --pose hip=0,thigh=0.7,calf=-1.4 | --pose bends the
robot init beast.xml --out new --torque 35 | '35' is not like hip=0,thigh=0.8
robot init beast.xml --out new --torque calf=nan | 'calf=nan' is not like hip=0
robot init beast.xml --out new --trunk-box 0.2,0.1,-1 | is not like 0.3,0.1,0.08
robot init beast.xml --out new --knees up | invalid choice: 'up'
robot vary rex --out new | no robot 'rex'
"""
"""A command, of files in the working directory, and what its line has to say."""

TEXTS = {
    "file.json": "{}",
    "words.xml": "kp = 35",
    "page.xml": "<html/>",
    "still.urdf": '<robot name="x"><link name="a"/></robot>',
}


@pytest.mark.parametrize("case", [line for line in COMMANDS.splitlines() if line])
def test_wrong_input_is_one_line_and_makes_nothing(
    case: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in TEXTS.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "empty").mkdir()
    command, *complaints = case.split("| ")
    if "beast.xml" in command:
        menagerie_file(tmp_path / "collection")
        command = command.replace("beast.xml", "collection/beast.xml")
    before = _contents(tmp_path)
    assert_refused(run(*shlex.split(command)), *(complaint.strip() for complaint in complaints))
    assert _contents(tmp_path) == before


def _contents(folder: Path) -> dict[Path, int]:
    """Every file there is, with its time."""
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
