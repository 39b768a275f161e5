"""The check in C: the numbers of the Python check, from the same rows."""

import ctypes
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from gaitforge.collectors.robots.robot import RobotCard, load_robot
from gaitforge.plugins.robot_runtime.sensors.blocks import make_blocks
from gaitforge.plugins.robot_runtime.sensors.checking import check_log
from gaitforge.plugins.robot_runtime.sensors.hypotheses import (
    AS_LOGGED,
    READINGS,
    gyro_maps,
    single_joint_maps,
)
from gaitforge.plugins.robot_runtime.sensors.logs import SensorLog, to_csv
from gaitforge.plugins.robot_runtime.sensors.plane import Legs
from gaitforge.plugins.robot_runtime.sensors.rates import gyro_rates, joint_rates, moments
from gaitforge.plugins.robot_runtime.sensors.writing import robot_check_files
from gaitforge.plugins.robot_runtime.sensors.zeros import kind_off, level_pose, zero_estimates
from gaitforge.plugins.robot_runtime.tests.sensor_logs import (
    FAULTS,
    FURTHER_FAULTS,
    ROBOTS,
    Tilting,
    make_log,
    random_tilting,
)

STRICT = ("-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "-Wconversion", "-Wshadow")
CODES = ("ok", "too little", "order", "zero", "pose", "unexplained", "scale", "still")
DOUBLES = (
    *("pitch_range_rad", "roll_range_rad", "slope_pitch", "slope_roll", "out_of_plane_m"),
    *("motion", "height", "motion_when_right"),
)
ARRAYS = {
    **{"dq_slope": 12, "dq_slope_error": 12, "gyro_slope": 3, "gyro_slope_error": 3},
    **{"pose_rad": 12, "zero_rad": 12, "zero_gain": 12},
}


class Result(ctypes.Structure):
    """`robot_check_result`."""

    _fields_ = (
        *((name, ctypes.c_int) for name in ("code", "fault", "dq_fault", "gyro_fault")),
        *((name, ctypes.c_double) for name in DOUBLES),
        *((name, ctypes.c_double * size) for name, size in ARRAYS.items()),
        ("worst_joint", ctypes.c_int),
        ("pose_kind", ctypes.c_int),
        ("pose_kind_rad", ctypes.c_double),
        ("still", ctypes.c_int),
    )


def compiler(name: str) -> str:
    """A compiler's path; skips loudly without it."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"no {name} here: apt install gcc g++ gcc-aarch64-linux-gnu qemu-user")
    return found


def write(robot: RobotCard, folder: Path) -> None:
    """The check's files in a folder."""
    for name, content in robot_check_files(robot).items():
        (folder / name).write_bytes(content)


def build(folder: Path, *flags: str, cc: str = "cc") -> None:
    """Compile with strict warnings."""
    subprocess.run([compiler(cc), *STRICT, *flags], cwd=folder, check=True, timeout=120)


@dataclass
class Library:
    """The compiled check of a robot."""

    library: ctypes.CDLL

    def check(self, log: SensorLog) -> Result:
        """The result of a log's rows."""
        state = ctypes.create_string_buffer(1 << 20)  # more than the struct has
        self.library.robot_check_reset(state)
        for row in range(len(log.time_s)):
            assert self.add(state, log, row) == 0
        result = Result()
        assert self.library.robot_check_finish(state, ctypes.byref(result)) == result.code
        return result

    def add(self, state: object, log: SensorLog, row: int) -> int:
        """The code of a row."""
        parts = [getattr(log, name)[row].astype(np.float32) for name in ("q", "dq", "quat", "gyro")]
        pointers = [part.ctypes.data_as(ctypes.c_void_p) for part in parts]
        return self.library.robot_check_add(state, ctypes.c_double(log.time_s[row]), *pointers)

    def text(self, result: Result) -> str:
        """What it says."""
        self.library.robot_check_text.restype = ctypes.c_char_p
        return self.library.robot_check_text(ctypes.byref(result)).decode()


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Library]:
    """Robot -> its check, compiled when a test first needs it."""

    @cache
    def library(robot: str) -> Library:
        folder = tmp_path_factory.mktemp(robot)
        write(load_robot(robot), folder)
        build(folder, "-O1", "-shared", "-fPIC", "robot_check.c", "-lm", "-o", "check.so")
        return Library(ctypes.CDLL(str(folder / "check.so")))

    return library


def as_float32(log: SensorLog) -> SensorLog:
    """The log that C sees."""
    parts = {
        name: getattr(log, name).astype(np.float32).astype(np.float64)
        for name in ("q", "dq", "quat", "gyro")
    }
    return replace(log, **parts)


def mistakes() -> list[str]:
    """Words of C's faults by their place."""
    return [m.text for m in single_joint_maps()] + [r.text for r in READINGS[1:]]


QUICK = ("go2", "anymal_c")
"""Robots of the quick tests: a small and a large one."""


@pytest.mark.parametrize(
    "robot", [pytest.param(r, marks=[] if r in QUICK else pytest.mark.slow) for r in ROBOTS]
)
def test_the_numbers_are_those_of_python(robot: str, libraries: Callable[[str], Library]) -> None:
    card = load_robot(robot)
    log = as_float32(make_log(card, Tilting(seconds=20, slope=0.2, rate_hz=50), 3))
    result = libraries(robot).check(log)
    legs = Legs(card)
    blocks = make_blocks(log)
    up = AS_LOGGED.up(blocks.quat)
    first = blocks.first
    level = level_pose(legs, blocks.q, first)
    pose = level - card.default_joint_pos_rad
    zero = zero_estimates(legs, blocks.q, up, first, pose)
    dq = joint_rates(moments(blocks.q_rate, blocks.dq)).moments
    turning = AS_LOGGED.rates(blocks.quat, first, blocks.seconds)
    gyro = gyro_rates(blocks.gyro, turning).moments
    fit = legs.fit(blocks.q, up, first)
    report = check_log(log, card)
    expected = {
        "pitch_range_rad": report.measured["pitch_range_rad"],
        "roll_range_rad": report.measured["roll_range_rad"],
        **{name: getattr(fit, name) for name in DOUBLES[2:7]},
        "motion_when_right": fit.motion,
        "dq_slope": dq.slopes,
        "dq_slope_error": dq.slope_errors,
        "gyro_slope": gyro.slopes,
        "gyro_slope_error": gyro.slope_errors,
        "pose_rad": pose,
        "zero_rad": zero.angles_rad,
        "zero_gain": zero.gains,
    }
    for name, values in expected.items():
        measured = np.array(getattr(result, name))
        np.testing.assert_allclose(measured, values, rtol=1e-6, atol=1e-9, err_msg=name)
    assert CODES[result.code] == "ok"
    assert result.worst_joint == int(np.argmax(zero.gains))


def test_the_foot_of_every_pose_is_pythons(libraries: Callable[[str], Library]) -> None:
    """Angles far from the default, and far beyond a turn, give Python's heights."""
    card = load_robot("go2")
    log = make_log(card, Tilting(seconds=10), 3)
    rng = np.random.default_rng(1)
    for reach in (3.0, 90.0):
        q = rng.uniform(-reach, reach, log.q.shape)
        turned = as_float32(replace(log, q=q))
        blocks = make_blocks(turned)
        fit = Legs(card).fit(blocks.q, AS_LOGGED.up(blocks.quat), blocks.first)
        result = libraries("go2").check(turned)
        assert result.motion == pytest.approx(fit.motion, rel=1e-9)
        assert result.height == pytest.approx(fit.height, rel=1e-9)


@pytest.mark.parametrize("fault", FAULTS | FURTHER_FAULTS)
def test_the_faults_are_those_of_python(fault: str, libraries: Callable[[str], Library]) -> None:
    make, _ = (FAULTS | FURTHER_FAULTS)[fault]
    for robot in ("go2", "anymal_c"):
        card = load_robot(robot)
        log = as_float32(make(make_log(card, Tilting(slope=0.1, rate_hz=50), 8)))
        result = libraries(robot).check(log)
        (finding,) = check_log(log, card).findings
        said = libraries(robot).text(result)
        if finding.kind == "zero":
            assert CODES[result.code] == "zero"
            assert card.joint_names[result.worst_joint] == finding.joints[0]
            assert finding.joints[0] in said
        elif finding.kind == "pose":
            assert CODES[result.code] == "pose"
            found = kind_off(card, card.default_joint_pos_rad + np.array(result.pose_rad))
            assert found is not None
            assert result.pose_kind == found.kind
            assert result.pose_kind_rad == pytest.approx(found.angle_rad, rel=1e-6)
        else:
            assert CODES[result.code] == "order"
            words = finding.text.partition(": ")[2] or finding.text
            dq = single_joint_maps()[result.dq_fault].text.replace("degrees,", "degrees/s,")
            gyro = gyro_maps()[result.gyro_fault].text
            texts = [mistakes()[result.fault], dq.replace("in rad", "in rad/s"), gyro]
            assert words in said
            assert words in texts


def test_dq_shares_the_fault_of_q_or_does_not(libraries: Callable[[str], Library]) -> None:
    card = load_robot("go2")
    log = make_log(card, Tilting(rate_hz=50), 9)
    both = libraries("go2").check(FAULTS["left and right swapped"][0](log))
    assert both.dq_fault == both.fault > 0
    alone = libraries("go2").check(FURTHER_FAULTS["q alone in order of motors"][0](log))
    assert alone.fault == both.fault
    assert alone.dq_fault == 0
    turned = libraries("go2").check(FURTHER_FAULTS["IMU turned"][0](log))
    assert turned.fault >= len(single_joint_maps())
    assert turned.gyro_fault == 0, "it is turned with the quaternion"


def test_too_little_motion_and_refused_rows(libraries: Callable[[str], Library]) -> None:
    card = load_robot("go2")
    check = libraries("go2")
    still = check.check(make_log(card, Tilting(pitch=0.02, seconds=10), 1))
    assert CODES[still.code] == "too little"
    assert check.text(still).startswith("too little motion")
    log = make_log(card, Tilting(seconds=10), 1)
    state = ctypes.create_string_buffer(1 << 20)
    check.library.robot_check_reset(state)
    for row in range(500):
        check.add(state, log, row)
    before = bytes(state)
    for name, code in (("q", -1), ("dq", -1), ("quat", -1), ("gyro", -1)):
        for wrong in (np.nan, np.inf):
            values = getattr(log, name).copy()
            values[500, -1] = wrong
            assert check.add(state, replace(log, **{name: values}), 500) == code
    assert check.add(state, replace(log, quat=log.quat * 0.5), 500) == -2
    assert check.add(state, replace(log, time_s=log.time_s - 9), 500) == -1
    assert bytes(state) == before, "a refused row changes nothing"
    assert check.add(state, log, 500) == 0
    later = replace(log, time_s=log.time_s + 1.8e9)  # seconds since 1970
    assert CODES[check.check(later).code] == "ok"


@pytest.mark.parametrize(("part", "width"), [("q", 12), ("dq", 12), ("gyro", 3), ("quat", 1)])
def test_a_number_that_never_changes_is_a_fault_as_in_python(
    part: str, width: int, libraries: Callable[[str], Library]
) -> None:
    card = load_robot("go2")
    log = as_float32(make_log(card, Tilting(rate_hz=50), 4))
    for column in range(width):
        values = getattr(log, part).copy()
        still = slice(None) if part == "quat" else column
        values[:, still] = values[0, still]
        stopped = replace(log, **{part: values})
        result = libraries("go2").check(stopped)
        said = libraries("go2").text(result)
        (finding,) = check_log(stopped, card).findings
        assert (CODES[result.code], finding.kind) == ("still", "still")
        assert said.replace("changes", "change") == finding.text
        assert all(joint in said for joint in finding.joints)


def _run(folder: Path, text: str) -> "subprocess.CompletedProcess[str]":
    """The program's end with a log as its input."""
    environment = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0"}
    return subprocess.run(
        ["./program"], cwd=folder, input=text, text=True, capture_output=True, timeout=60,
        check=False, env=environment,
    )  # fmt: skip


def test_sanitizers_and_the_program(tmp_path: Path) -> None:
    card = load_robot("aliengo")
    write(card, tmp_path)
    flags = ("-O0", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    build(tmp_path, *flags, "robot_check.c", "robot_check_main.c", "-lm", "-o", "program")
    right = make_log(card, Tilting(rate_hz=50, seconds=15), 2)
    wrong = FAULTS["signs of calves"][0](right)
    damaged = replace(right, quat=right.quat * 0.1)
    for log, code, words in (
        (right, 0, "ok"),
        (wrong, 1, "signs of the calves of all legs are wrong"),
        (damaged, 2, ""),
    ):
        ended = _run(tmp_path, to_csv(log))
        assert ended.returncode == code, ended.stderr
        assert words in ended.stdout
    header, *rows = to_csv(right).splitlines()
    named = header
    for place, joint in enumerate(card.joint_names):
        named = re.sub(rf"q_{place}\b", f"q_{joint}", named)
    fields = [line.split(",") for line in (header, *rows)]
    dq_first = [f[:1] + f[13:25] + f[1:13] + f[25:] for f in fields]
    for lines, line in (
        (["# tilted by hand", "", named, *rows], 0),
        (rows, 0),
        ([header + " ", *(row.replace(",", " , ") + "\r" for row in rows)], 0),
        ([",".join(columns) for columns in dq_first], 1),
        ([header.replace("quat_w", "quat_x"), *rows], 1),
        ([header + ",volt", *(row + ",24" for row in rows)], 1),
        ([header, *rows[:300], ",".join(rows[300].split(",")[:20]), *rows[301:]], 302),
        ([header, *rows[:300], rows[300] + ",1", *rows[301:]], 302),
        ([header, *rows[:300], header, *rows[300:]], 302),
        ([header, rows[0].replace(",", ";"), *rows[1:]], 2),
        ([header, *rows[:9], "9" * 9000, *rows[9:]], 11),
    ):
        ended = _run(tmp_path, "\n".join(lines) + "\n")
        assert ended.returncode == (2 if line else 0), ended.stderr
        assert ended.stderr.startswith(f"line {line}" if line else "")


def test_it_needs_sqrtf_alone_and_refuses_fast_math(tmp_path: Path) -> None:
    write(load_robot("go2"), tmp_path)
    build(tmp_path, "-O2", "-fno-builtin", "-c", "robot_check.c")
    symbols = subprocess.run(
        [compiler("nm"), "-u", "robot_check.o"],
        cwd=tmp_path, text=True, capture_output=True, check=True,
    ).stdout.split()  # fmt: skip
    allowed = {"U", "sqrtf", "memcpy", "memset", "_GLOBAL_OFFSET_TABLE_"}
    assert set(symbols) <= allowed
    assert "sqrtf" in symbols
    words: Sequence[str] = (compiler("cc"), "-ffast-math", "-c", "robot_check.c")
    refused = subprocess.run(words, cwd=tmp_path, text=True, capture_output=True, check=False)
    assert refused.returncode
    assert "without -ffast-math" in refused.stderr
    header = (compiler("g++"), "-std=c++11", "-Wall", "-Werror", "-fsyntax-only", "robot_check.h")
    subprocess.run(header, cwd=tmp_path, check=True)


def test_aarch64_says_the_same(tmp_path: Path) -> None:
    """The program for ARM, in qemu, prints what this machine's prints."""
    compiler("qemu-aarch64")
    card = load_robot("go2")
    write(card, tmp_path)
    sources = ("-O1", "robot_check.c", "robot_check_main.c", "-lm")
    build(tmp_path, *sources, "-o", "here")
    build(tmp_path, *sources, "-static", "-o", "arm", cc="aarch64-linux-gnu-gcc")
    log = FAULTS["zero of RR calf"][0](make_log(card, Tilting(rate_hz=50, seconds=15), 2))
    printed = [
        subprocess.run(
            words, cwd=tmp_path, input=to_csv(log), text=True, capture_output=True, timeout=120,
            check=False,
        ).stdout
        for words in (["./here"], ["qemu-aarch64", "./arm"])
    ]  # fmt: skip
    assert printed[0] == printed[1]
    assert "the zero of RR_calf_joint is off" in printed[0]


@pytest.mark.slow
def test_random_logs_have_pythons_verdict(libraries: Callable[[str], Library]) -> None:
    """Right logs are ok in C as in Python; a fault of order is the same one."""
    rng = np.random.default_rng(5)
    for seed in range(40):
        robot = ROBOTS[seed % len(ROBOTS)]
        log = make_log(load_robot(robot), random_tilting(rng), seed)
        assert CODES[libraries(robot).check(log).code] == "ok"
        made = libraries(robot).check(FAULTS["joints by kind"][0](log))
        assert mistakes()[made.fault].startswith("joints come by kind")


def test_names_of_a_card_bring_no_code() -> None:
    """A joint's name from a file stays text in a comment and in a string."""
    card = load_robot("go2")
    evil = ('x*/int a;"\\n\n%s', *card.joint_names[1:])
    for name, content in robot_check_files(replace(card, joint_names=evil)).items():
        text = content.decode()
        assert "*/int" not in text, name
        assert 'a;"' not in text, name
