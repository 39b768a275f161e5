"""`gaitforge robot init`, its pictures, and `gaitforge robot vary`."""

import json
import re
import shlex
from pathlib import Path
from xml.sax.saxutils import escape

import numpy as np
import pytest
from PIL import Image

from gaitforge.collectors.robots.robot import load_robot
from gaitforge.plugins.robots.tests.menagerie_files import menagerie_file
from tests.pipeline.command_line import Run, assert_refused

QUOTE = {'"': "&quot;"}


@pytest.fixture
def beast(tmp_path: Path) -> Path:
    """A quadruped as collections have it."""
    return menagerie_file(tmp_path / "collection")


def test_every_decision_is_printed_then_the_check(run: Run, beast: Path, tmp_path: Path) -> None:
    out = tmp_path / "robots" / "beast"
    code, shown, err = run("robot", "init", beast, "--out", out, "--torque", "hip=30")
    assert (code, err) == (0, "")
    lines = shown.splitlines()
    assert "leg FL: LF_HAA, LF_HFE, LF_KFE (places of the hips, axes)" in lines
    assert (
        "torque limits, Nm: hip 30, thigh 40, calf 40 (actuators' forcerange, and --torque)"
    ) in lines
    assert lines[-1] == "beast can be used"
    assert f"card                   {out / 'robot.json'}" in lines
    assert load_robot(str(out)).torque_limit_nm[0] == 30.0


def test_json_holds_the_same(run: Run, beast: Path, tmp_path: Path) -> None:
    code, shown, err = run("robot", "init", beast, "--out", tmp_path / "out", "--json")
    assert (code, err) == (0, "")
    found = json.loads(shown)
    decided = {each["what"]: each for each in found["decisions"]}
    assert decided["kp, Nm/rad"] == {"what": "kp, Nm/rad", "value": "90", "source": "the file's"}
    checked = json.loads(run("robot", "check", tmp_path / "out", "--json").out)
    assert found["check"] == checked


def test_what_is_asked_for_can_be_given(run: Run, tmp_path: Path) -> None:
    beast = menagerie_file(
        tmp_path / "collection",
        *(('range="-150 150"', ""), ("-0.7 1.4", "0 0"), ('forcerange="-40 40"', "")),
        ('class="collision" type="box"', 'class="visual" type="box"'),
        ('size="0.04" fromto', 'class="visual" type="capsule" size="0.04" fromto'),
        ('<geom class="collision" type="sphere"', '<geom class="visual" type="sphere"'),
        ('class="collision" class="visual"', 'class="visual"'),
    )
    out = tmp_path / "out"
    outcome = run("robot", "init", beast, "--out", out)
    assert_refused(outcome, "beast.xml: it does not say everything; give --limit calf=LOW:HIGH")
    asked = re.findall(r"--[a-z-]+ [^ ]+", outcome.err.split("; give ")[1])
    values = {"LOW:HIGH": "-2.5:2.5", "NM": "30", "X,Y,Z": "0.2,0.1,0.05"}
    given = [option.replace("backward|forward|inward|outward", "inward") for option in asked]
    for form, value in values.items():
        given = [option.replace(form, value) for option in given]
    arguments = [part for option in given for part in option.split(" ")]
    assert arguments[::2] == ["--limit", "--torque", "--trunk-box", "--knees"]
    assert run("robot", "init", beast, "--out", out, *arguments).code == 0


def test_a_fifth_leg_is_refused_or_welded(run: Run, tmp_path: Path) -> None:
    arguments = "--out", tmp_path / "out"
    text = menagerie_file(tmp_path / "five").read_text()
    leg = text[text.index('      <body name="LH_HIP"') : text.index("    </body>\n  </worldbody>")]
    text = text.replace(leg, leg + leg.replace("LH", "LM").replace("-0.22", "0.01"))
    five = tmp_path / "five" / "beast.xml"
    five.write_text(text.replace('"/></keyframe>', ' 0 0 0"/></keyframe>'))
    said = "body 'base' has 5 (RF_HAA, LF_HAA, RH_HAA, LH_HAA, LM_HAA)"
    assert_refused(run("robot", "init", five, *arguments), said)
    weld = "--weld", "LM_HAA,LM_HFE,LM_KFE"
    assert run("robot", "init", five, *arguments, *weld).code == 0


def test_the_advice_for_names_with_commas_and_equals_signs_works(run: Run, tmp_path: Path) -> None:
    tail = '<body><joint name="{}" axis="0 1 0"/><geom class="collision" size="0.01 0.01"/></body>'
    names = ("a,b", '"tip" = 2', "c")
    beast = menagerie_file(
        tmp_path / "collection",
        ('<site name="imu"/>', "".join(tail.format(escape(each, QUOTE)) for each in names)),
        ('<sensor><gyro name="gyro" site="imu"/></sensor>', ""),
        ('qpos="0 0 0.35 1 0 0 0 ', 'qpos="0 0 0.35 1 0 0 0 0 0 0 '),
        ("LF_HAA", "LF,HAA=1"),
        ('forcerange="-40 40"', ""),
    )
    command = ["robot", "init", beast, "--out", tmp_path / "out", "--limit", '"LF,HAA=1"=-0.5:0.5']
    outcome = run(*command)
    assert_refused(outcome, "joints of no leg; to fix them give --weld ")
    command += ["--weld", *shlex.split(outcome.err.partition("give --weld ")[2])]
    torque = '"LF,HAA=1"=30,hip=31,thigh=40,calf=40'
    assert_refused(run(*command), "give --torque hip=NM,thigh=NM,calf=NM")
    assert run(*command, "--torque", torque).code == 0
    robot = load_robot(str(tmp_path / "out"))
    assert robot.joint_names[0] == "LF,HAA=1"
    assert robot.torque_limit_nm[::3].tolist() == [30, 31, 31, 31]
    assert robot.joint_upper_rad[0] == 0.5


def test_a_folder_in_use_gets_one_line(run: Run, beast: Path, tmp_path: Path) -> None:
    assert_refused(run("robot", "init", beast, "--out", beast.parent), "not an empty folder")
    (tmp_path / "empty").mkdir()
    assert run("robot", "init", beast, "--out", tmp_path / "empty").code == 0


@pytest.mark.slow
def test_a_picture_shows_the_robot_from_two_sides(run: Run, beast: Path, tmp_path: Path) -> None:
    pictures = tmp_path / "init.png", tmp_path / "check.png"
    assert (
        run("robot", "init", beast, "--out", tmp_path / "out", "--picture", pictures[0]).code == 0
    )
    assert run("robot", "check", tmp_path / "out", "--picture", pictures[1]).code == 0
    images = [np.asarray(Image.open(path)).astype(int) for path in pictures]
    assert images[0].shape == (400, 1280, 3)
    np.testing.assert_array_equal(images[0], images[1])
    red, _, blue = np.moveaxis(images[0], -1, 0)
    orange, blues = (red > blue + 80), (blue > red + 80)
    # Legs of the right are orange: nearer, and so larger, in the view from the right.
    assert orange[:, :640].sum() > 2 * orange[:, 640:].sum() > 0
    assert blues[:, 640:].sum() > 2 * blues[:, :640].sum() > 0


def test_a_family_goes_on_where_it_stopped(run: Run, tmp_path: Path) -> None:
    command = ["robot", "vary", "go1", "--seed", "5", "--out", tmp_path / "family"]
    code, out, _ = run(*command, "--count", "2")
    assert code == 0
    assert "go1-5-001" in out
    first = _contents(tmp_path / "family" / "go1-5-000")
    code, out, _ = run(*command, "--count", "3", "--json")
    assert code == 0
    assert '"name": "go1-5-002"' in out
    assert _contents(tmp_path / "family" / "go1-5-000") == first
    (tmp_path / "family" / "go1-5-001").rename(tmp_path / "family" / "go1-5-003")
    code, _, err = run(*command, "--count", "4")
    assert code == 2
    assert "holds the robot 'go1-5-001', not 'go1-5-003'" in err


def _contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}
