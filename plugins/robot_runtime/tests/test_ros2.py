"""The ROS 2 node: compiled against stand-ins for ROS's headers, and driven by a program.

ROS itself is not needed, and not tested: whether the package builds with it, users see.
"""

import re
import shutil
import subprocess
import xml.etree.ElementTree
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import yaml

from gaitforge.collectors.robots.kinematics import ramped
from gaitforge.learners.control.control import LearnedPolicy
from gaitforge.learners.export.policy_formats import policy_format
from gaitforge.plugins.robot_runtime.runtimes.stateless import StatelessOptions, fixed_command
from gaitforge.plugins.robot_runtime.tests.robots import UNEVEN, Walk, small_export
from tests.learners.making import Seen

_STAND_INS = Path(__file__).parent / "ros2_stand_ins"
_WARNINGS = ["-Wall", "-Wextra", "-Werror"]
_STEPS = 15
_VELOCITY = (0.4, 0.05, -0.2)
_PATIENT = {"sensor_timeout_s": 60.0, "command_timeout_s": 60.0, "stand_s": 0.001}
_NAMES = UNEVEN.motor_names[::-1]
"""An order of joint_states that is neither the policy's nor the motors'."""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package of a small FCNet, and a program that drives its node in `build`."""
    for compiler in ("cc", "g++"):
        if shutil.which(compiler) is None:
            pytest.skip(f"no {compiler} here: apt-get install gcc g++")
    folder = tmp_path_factory.mktemp("ros2")
    written = policy_format("ros2").write(small_export("fcnet"), StatelessOptions())
    for name, content in written.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    _build(folder / "ros2", folder / "ros2" / "build")
    return folder / "ros2"


def _build(package: Path, build: Path) -> None:
    """Compile what is not there yet, and link."""
    build.mkdir(exist_ok=True)
    cpp = ["g++", "-std=c++17", f"-I{_STAND_INS}", f"-I{package / 'policy'}"]
    sources = {
        package / "policy" / "policy.c": ["cc", "-std=c99", "-O0"],
        package / "policy" / "policy_weights.c": ["cc", "-std=c99", "-O0"],
        package / "src" / "policy_node.cpp": cpp,
        _STAND_INS / "drive.cpp": cpp,
    }
    objects = {build / f"{source.stem}.o": source for source in sources}
    for compiled, source in objects.items():
        if not compiled.exists():
            _call(*sources[source], *_WARNINGS, "-c", str(source), "-o", str(compiled))
    _call("g++", *map(str, objects), "-lm", "-o", str(build / "node"))


def _call(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


def _drive(
    package: Path, lines: list[str], changed: Mapping[str, float] = _PATIENT
) -> tuple[np.ndarray, str, int]:
    """(K, 3, 12) what the node publishes, what it says, and its exit code."""
    parameters = yaml.safe_load((package / "config" / "policy.yaml").read_text())
    values = parameters["gaitforge_policy"]["ros__parameters"] | dict(changed)
    head = [
        f"parameter {name} {len(value)} {' '.join(map(str, value))}"
        if isinstance(value, list)
        else f"parameter {name} 0 {value}"
        for name, value in values.items()
    ]
    done = subprocess.run(
        [str(package / "build" / "node")],
        input="\n".join([*head, "start", *lines]) + "\n",
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    rows = [list(map(float, line.split())) for line in done.stdout.splitlines()]
    return np.array(rows).reshape(-1, 3, 12), done.stderr, done.returncode


def _quaternion(gravity: np.ndarray) -> np.ndarray:
    """(4,) wxyz of a trunk that feels this gravity: the shortest turn from level."""
    down = np.array([0.0, 0.0, -1.0])
    turn = np.array([1.0 + gravity @ down, *np.cross(gravity, down)])
    return turn / np.linalg.norm(turn)


def _sensors(walk: Walk, step: int) -> list[str]:
    places = [UNEVEN.joint_names.index(name) for name in _NAMES]
    q = walk.joint_pos[step, 0, places]
    dq = walk.joint_vel[step, 0, places]
    imu = [*_quaternion(walk.gravity[step, 0]), *walk.gyro[step, 0]]
    return [
        f"joints 12 {' '.join(_NAMES)} {_words(q)} {_words(dq)}",
        f"imu {_words(imu)}",
    ]


def _words(values: object) -> str:
    return " ".join(f"{value:.9g}" for value in np.asarray(values))


def _walk(steps: int = _STEPS + 1) -> Walk:
    return Walk(2, steps, fixed_command(small_export("fcnet"), StatelessOptions()))


def _is_damping(published: np.ndarray) -> bool:
    target, kp, kd = published
    return bool(np.all(target == 0.0) and np.all(kp == 0.0) and np.all(kd > 0.0))


def test_it_stands_up_and_then_moves_joints_as_the_policy(package: Path) -> None:
    walk = _walk()
    lines = [*_sensors(walk, 0), "step", "run 1", "wait 0.01", "step"]
    for step in range(_STEPS):
        lines += [*_sensors(walk, step), f"velocity {_words(_VELOCITY)}", "step"]
    published, said, code = _drive(package, lines)
    assert code == 0, said
    damping, standing, *running = published
    assert _is_damping(damping)
    assert standing[0] == pytest.approx(UNEVEN.default_joint_pos_rad, abs=1e-6)
    assert standing[1] == pytest.approx(2.0 * np.array(UNEVEN.kp_nm_per_rad))

    command = fixed_command(small_export("fcnet"), StatelessOptions())
    target = np.array([[*_VELOCITY, *command.values[3:]]])
    policy = LearnedPolicy(small_export("fcnet").policy, 1, action_limit=UNEVEN.action_limit)
    policy.reset(np.array([0]))
    action = np.zeros((1, 12), np.float32)
    low = np.array(UNEVEN.joint_lower_rad) - UNEVEN.target_margin_rad
    high = np.array(UNEVEN.joint_upper_rad) + UNEVEN.target_margin_rad
    for step in range(_STEPS):
        observation = walk.observation(step, action)
        observation[:, 54:] = ramped(target, np.array([step * UNEVEN.control_dt_s]))
        action = policy.act(Seen(observation, np.zeros(1)))
        wanted = UNEVEN.default_joint_pos_rad + UNEVEN.action_scale_rad * action[0]
        assert running[step][0] == pytest.approx(wanted.clip(low, high), abs=1e-5)
        assert running[step][1] == pytest.approx(UNEVEN.kp_nm_per_rad)
        assert running[step][2] == pytest.approx(UNEVEN.kd_nms_per_rad)


_STOPS = {
    "late": (["wait 0.2"], "late", {"sensor_timeout_s": 0.15}),
    "not finite": (["joints"], "returned 1", {}),
    "tilted": (["imu 0.2 0.98 0 0 0 0 0"], "tilts", {}),
    "no orientation": (["imu nan nan nan nan 0 0 0"], "tilts", {}),
    "another robot": (["joints 1 wheel 0 0"], "lacks joints", {}),
    "asked to": (["run 0"], "asked to stop", {}),
}


@pytest.mark.parametrize("fault", _STOPS)
def test_it_damps_until_it_is_asked_to_run_again(fault: str, package: Path) -> None:
    walk = _walk()
    faults, words, changed = _STOPS[fault]
    if faults == ["joints"]:
        zeros = " ".join(["0"] * 12)
        faults = [f"joints 12 {' '.join(_NAMES)} {zeros} {' '.join(['nan'] * 12)}"]
    start = [*_sensors(walk, 0), "run 1", "wait 0.01", "step", *_sensors(walk, 0), "step"]
    lines = [*start, *faults, "step", *_sensors(walk, 1), "step", *start]
    published, said, _ = _drive(package, lines, _PATIENT | changed)
    standing, running, stopped, still, again, *_ = published
    assert not _is_damping(standing)
    assert not _is_damping(running)
    assert _is_damping(stopped)
    assert _is_damping(still)
    assert not _is_damping(again)
    assert words in said


def test_it_does_not_start_without_sensors_and_stops_where_commands_end(package: Path) -> None:
    published, _, _ = _drive(package, ["run 1", "step"])
    assert _is_damping(published[0])
    walk = _walk()
    begin = [*_sensors(walk, 0), "run 1", "wait 0.01", "step"]
    steps = [line for step in range(4) for line in (*_sensors(walk, step), "step")]
    silent, _, _ = _drive(package, [*begin, *steps])
    commanded = [*begin, "velocity 2 0 0", "wait 0.05", *steps]
    timed_out, _, _ = _drive(package, commanded, _PATIENT | {"command_timeout_s": 0.01})
    heard, _, _ = _drive(package, commanded)
    assert np.array_equal(silent, timed_out)
    assert not np.array_equal(silent, heard)


def test_other_weights_than_the_exported_ones_do_not_run(package: Path, tmp_path: Path) -> None:
    copy = tmp_path / "ros2"
    shutil.copytree(package, copy)
    weights = copy / "policy" / "policy_weights.c"
    text = weights.read_text()
    number = re.findall(r"-?\d+\.\d+(?:e[-+]?\d+)?f", text)[7]
    weights.write_text(text.replace(number, "0.5f", 1))
    (copy / "build" / "policy_weights.o").unlink()
    _build(copy, copy / "build")
    published, said, code = _drive(copy, ["step"])
    assert (len(published), code) == (0, 1)
    assert "not the exported policy" in said


def test_the_package_names_what_its_node_uses(package: Path) -> None:
    node = (package / "src" / "policy_node.cpp").read_text()
    used = set(re.findall(r"#include <(\w+)/", node))
    tree = xml.etree.ElementTree.parse(package / "package.xml").getroot()
    assert {entry.text for entry in tree.findall("depend")} == used
    cmake = (package / "CMakeLists.txt").read_text()
    assert set(re.findall(r"find_package\((\w+)", cmake)) == used | {"ament_cmake"}
    for source in re.findall(r"\S+\.(?:cpp|c)\b", cmake):
        assert (package / source).is_file(), source
