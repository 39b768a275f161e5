"""Impossible inertias and slips of units are refused by link; joints that follow are named."""

from pathlib import Path

import pytest

from gaitforge.collectors.robots.robot import RobotError
from gaitforge.plugins.robots.describing.notes import Answers, Notes
from gaitforge.plugins.robots.describing.reading import read_mjcf

BALANCE = '<mujoco><compiler balanceinertia="true"/></mujoco>'


def urdf(tensor: str, head: str = "", mimic: str = "", mass: float = 1.0) -> str:
    """Two links of 1 kg and 3 x 3 x 20 cm on a trunk; `tensor`: the first one's ixx iyy izz ixy."""

    def link(name: str, values: str, kilograms: float) -> str:
        xx, yy, zz, xy = values.split()
        inertia = f'ixx="{xx}" iyy="{yy}" izz="{zz}" ixy="{xy}" ixz="0" iyz="0"'
        return (
            f'<link name="{name}"><inertial><mass value="{kilograms}"/><inertia {inertia}/>'
            '</inertial><collision><geometry><box size="0.03 0.03 0.2"/></geometry></collision>'
            "</link>"
        )

    def joint(name: str, child: str, more: str = "") -> str:
        return (
            f'<joint name="{name}" type="revolute"><parent link="trunk"/><child link="{child}"/>'
            f'<axis xyz="0 1 0"/><limit lower="-1" upper="1" effort="9" velocity="9"/>{more}'
            "</joint>"
        )

    good = "0.004 0.004 0.001 0"
    links = link("trunk", good, 1.0) + link("first", tensor, mass) + link("second", good, 1.0)
    joints = joint("lead", "first") + joint("follower", "second", mimic)
    return f'<robot name="r">{head}{links}{joints}</robot>'


def mjcf(moments: str) -> str:
    return (
        '<mujoco><worldbody><body name="trunk"><freejoint/><geom size=".1"/><body name="first">'
        f'<joint name="j"/><inertial pos="0 0 0" mass="1" diaginertia="{moments}"/>'
        '<geom type="box" size=".015 .015 .1"/></body></body></worldbody></mujoco>'
    )


def read(text: str, folder: Path) -> list[str]:
    """The decisions about a file, as text."""
    path = folder / ("r.urdf" if "<robot" in text else "r.xml")
    path.write_text(text)
    notes = Notes(path.name, Answers())
    read_mjcf(path, notes)
    return [f"{each.what}: {each.value}" for each in notes.decisions]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (urdf("-0.001 0.004 0.004 0"), "link first has an impossible inertia"),
        (urdf("-0.001 0.004 0.004 0", BALANCE), "link first has an impossible inertia"),
        (urdf("0.009 0.001 0.001 0"), "write what a box of its 1 kg and 0.03 x 0.03 x 0.2 m has"),
        (urdf("0.004 0.004 0.001 0.01"), "link first has an impossible inertia"),
        (urdf("4000 4000 1000 0"), "first: .* kg mm2"),
        (urdf("40 40 10 0"), "first: .* kg cm2"),
        (urdf("4e-9 4e-9 1e-9 0"), "first: .* kg mm2 twice"),
        (mjcf("0.009 0.001 0.001"), "link first has an impossible inertia"),
        (mjcf("4000 4000 1000"), "first: .* kg mm2"),
    ],
)
def test_a_wrong_inertia_is_refused(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(RobotError, match=complaint) as refused:
        read(text, tmp_path)
    assert "\n" not in str(refused.value)


def test_the_remedies_work(tmp_path: Path) -> None:
    """The moments of the box that a refusal gives, and MuJoCo's own balancing."""
    with pytest.raises(RobotError) as refused:
        read(urdf("0.009 0.001 0.001 0"), tmp_path)
    words = str(refused.value).replace(",", "").split()
    values = [words[words.index(name) + 1] for name in ("ixx", "iyy", "izz")]
    assert read(urdf(" ".join([*values, "0"])), tmp_path) == []
    [balanced] = read(urdf("0.009 0.001 0.001 0", BALANCE), tmp_path)
    assert balanced == "inertia: of first: equal moments, their mean"


def test_joints_that_follow_others_are_named(tmp_path: Path) -> None:
    mimic = '<mimic joint="lead" multiplier="-1" offset="0.2"/>'
    [caution] = read(urdf("0.004 0.004 0.001 0", mimic=mimic), tmp_path)
    assert "mimic joints: follower follows lead x -1 + 0.2: the coupling is not kept" in caution
    assert "a motor of its own" in caution
