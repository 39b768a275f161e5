"""The check of sensors: faults are found and named, right logs are left alone."""

import io
import json
import signal
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gaitforge.collectors.robots.robot import load_robot
from gaitforge.flows.stages.transfer import robot_facts
from gaitforge.learners.export.onnx_policy import FORMAT, FORMAT_VERSION
from gaitforge.plugins.robot_runtime.sensors import logs
from gaitforge.plugins.robot_runtime.sensors.blocks import make_blocks
from gaitforge.plugins.robot_runtime.sensors.checking import FOLLOWS, check_log
from gaitforge.plugins.robot_runtime.sensors.hypotheses import (
    AS_LOGGED,
    READINGS,
    gyro_maps,
    single_joint_maps,
)
from gaitforge.plugins.robot_runtime.sensors.logs import (
    ROW,
    WIDTHS,
    SensorLog,
    parsed_rows,
    read_live,
    read_log,
    to_csv,
)
from gaitforge.plugins.robot_runtime.sensors.plane import Legs
from gaitforge.plugins.robot_runtime.tests.physics_logs import physics_log
from gaitforge.plugins.robot_runtime.tests.sensor_logs import (
    FAULTS,
    FURTHER_FAULTS,
    ROBOTS,
    Tilting,
    is_named,
    make_log,
    random_tilting,
    reordered,
)
from tests.pipeline.command_line import Run, assert_refused

ALL_FAULTS = FAULTS | FURTHER_FAULTS
NAMES = load_robot("aliengo").joint_names


# Right logs.
@pytest.mark.parametrize("robot", ROBOTS)
@pytest.mark.parametrize(
    ("rate", "amplitude"),
    [
        (50.0, 0.1),
        (50.0, 0.3),
        pytest.param(500.0, 0.1, marks=pytest.mark.slow),
        pytest.param(500.0, 0.3, marks=pytest.mark.slow),
    ],
)
def test_a_right_log_is_ok(robot: str, rate: float, amplitude: float) -> None:
    card = load_robot(robot)
    tilting = Tilting(rate_hz=rate, pitch=amplitude, roll=amplitude, slope=np.radians(15))
    report = check_log(make_log(card, tilting, 11), card)
    assert report.ok, report
    assert report.measured["slope_pitch"] == pytest.approx(1, abs=0.15)
    assert report.measured["slope_roll"] == pytest.approx(1, abs=0.15)


@pytest.mark.slow
@pytest.mark.parametrize("robot", ROBOTS)
def test_none_of_1000_right_logs_has_a_finding(robot: str) -> None:
    card = load_robot(robot)
    rng = np.random.default_rng(ROBOTS.index(robot))
    wrong = {}
    for seed in range(200):
        report = check_log(make_log(card, random_tilting(rng), seed), card)
        if not report.ok:
            wrong[seed] = report.findings or report.lacking
    assert wrong == {}


# Faults.
@pytest.mark.parametrize("fault", ALL_FAULTS)
def test_a_fault_is_found_and_named(fault: str) -> None:
    make, text = ALL_FAULTS[fault]
    for place, robot in enumerate(("aliengo", "anymal_c")):
        card = load_robot(robot)
        log = make(make_log(card, Tilting(slope=0.1, heading=2.0 - place), place))
        report = check_log(log, card)
        assert is_named(report, card, text), [finding.text for finding in report.findings]


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_the_twelve_faults_are_found_in_all_logs(fault: str) -> None:
    """All are found; one of 50 may have another name, such as a joint's beside the right one."""
    make, text = FAULTS[fault]
    rng = np.random.default_rng(len(fault))
    misnamed = []
    for seed in range(50):
        card = load_robot(ROBOTS[seed % len(ROBOTS)])
        tilting = random_tilting(rng)
        report = check_log(make(make_log(card, tilting, 1000 + seed)), card)
        texts = [finding.text for finding in report.findings]
        assert texts, (card.name, seed, tilting)
        if not is_named(report, card, text):
            misnamed.append((card.name, seed, tilting, texts))
    assert len(misnamed) <= 1, misnamed


def test_several_mistakes_at_once_are_named() -> None:
    card = load_robot("go2")
    swapped, _ = FAULTS["left and right swapped"]
    by_kind, _ = FAULTS["joints by kind"]
    log = by_kind(swapped(make_log(card, Tilting(), 3)))
    log = replace(log, q=log.q * np.where(np.arange(12) == 4, -1, 1))
    started = time.process_time()
    (finding, *_) = check_log(log, card).findings
    assert time.process_time() - started < 10
    assert "joints come by kind" in finding.text
    assert "left and right legs are swapped" in finding.text
    assert "signs of the thighs of FR are wrong" in finding.text


def test_mistakes_of_attitude_and_joints_at_once_are_named() -> None:
    card = load_robot("aliengo")
    log = make_log(card, Tilting(), 4)
    for name in ("signs of right hips", "quaternion conjugated"):
        log = FAULTS[name][0](log)
    texts = [finding.text for finding in check_log(log, card).findings]
    assert len(texts) == 2
    assert texts[0].startswith("the quaternion turns from the world's frame")
    assert texts[1] == "q and dq: signs of the hips of the right legs are wrong"


def test_feet_that_move_are_said_to_be_unexplained() -> None:
    card = load_robot("aliengo")
    log = make_log(card, Tilting(), 5)
    still = make_log(card, Tilting(pitch=0, roll=0, yaw=0), 5)
    (finding,) = check_log(replace(log, q=still.q, dq=still.dq), card).findings
    assert finding.kind == "unexplained"
    assert "do all four feet stand still" in finding.text


# Too little motion, and numbers from no sensor.
@pytest.mark.parametrize(("pitch", "roll", "words"), [(0.02, 0.2, "pitch"), (0.2, 0.03, "roll")])
def test_too_little_motion_is_not_ok(pitch: float, roll: float, words: str) -> None:
    card = load_robot("aliengo")
    swapped, _ = FAULTS["left and right swapped"]
    for log in (right := make_log(card, Tilting(pitch=pitch, roll=roll), 1), swapped(right)):
        report = check_log(log, card)
        assert report.findings == ()
        assert not report.ok
        (lacking,) = report.lacking
        assert lacking.startswith(f"{words}: 0.0")
        assert "tilt the trunk" in lacking


def test_what_never_changes_is_named() -> None:
    card = load_robot("aliengo")
    log = make_log(card, Tilting(), 1)
    q = log.q.copy()
    q[:, 5] = 0.3
    (finding,) = check_log(replace(log, q=q), card).findings
    assert finding.text == "q: FR_calf_joint never change"
    (finding,) = check_log(replace(log, quat=log.quat * 0.01), card).findings
    assert "has the length 0.01, not 1" in finding.text


# Physics.
@pytest.mark.parametrize(
    "robot",
    [pytest.param(robot, marks=[] if robot == "go2" else pytest.mark.slow) for robot in ROBOTS],
)
def test_a_stand_in_mujoco_is_right_until_a_fault_is_put_in(robot: str) -> None:
    """Feet that roll, soft legs that sag, a hand: no fault; orders and conventions are named."""
    card = load_robot(robot)
    log = physics_log(card, 0)
    report = check_log(log, card)
    assert report.findings == ()
    assert report.measured["slope_pitch"] == pytest.approx(1, abs=0.1)
    assert report.measured["slope_roll"] == pytest.approx(1, abs=0.1)
    for fault in list(FAULTS)[:10]:
        make, text = FAULTS[fault]
        assert is_named(check_log(make(log), card), card, text), fault


# Laws.
@given(seed=st.integers(0, 2**16), first=st.integers(0, 200), second=st.integers(0, 200))
@settings(max_examples=20, deadline=None)
def test_maps_put_right_what_they_describe(seed: int, first: int, second: int) -> None:
    """A log with the fault that a map describes is the right one after the map."""
    values = np.random.default_rng(seed).normal(size=(3, 12))
    maps = single_joint_maps()
    joints = maps[first % len(maps)]
    logged = np.empty_like(values)
    logged[:, list(joints.source)] = values * np.array(joints.signs) / joints.scale
    np.testing.assert_allclose(joints.apply(logged), values)
    turn = gyro_maps()[second % len(gyro_maps())]
    assert sorted(turn.source) == [0, 1, 2]


@given(seed=st.integers(0, 2**16))
@settings(max_examples=20, deadline=None)
def test_a_readings_rates_are_the_gyros(seed: int) -> None:
    """The attitude's rates of a log without noise are the gyro's, also for read wrong ones."""
    log = make_log(load_robot("a1"), Tilting(seconds=6, noise=0, yaw=0.2), seed)
    blocks = make_blocks(log)
    rates = AS_LOGGED.rates(blocks.quat, blocks.first, blocks.seconds)
    np.testing.assert_allclose(rates, blocks.gyro, atol=0.02)
    swapped = log.quat[:, [1, 2, 3, 0]]
    np.testing.assert_allclose(READINGS[1].up(swapped), AS_LOGGED.up(log.quat), atol=1e-12)


@given(seed=st.integers(0, 2**16), slope=st.floats(0, 0.26))
@settings(max_examples=15, deadline=None)
def test_heights_of_feet_that_stay_do_not_change(seed: int, slope: float) -> None:
    """Whatever the ground's slope: `motion` is 0 without noise, and not for swapped legs."""
    card = load_robot("go2")
    log = make_log(card, Tilting(seconds=10, noise=0, slope=slope), seed)
    legs = Legs(card)
    for fault, right in ((lambda log: log, True), (reordered([*range(6, 12), *range(6)]), False)):
        blocks = make_blocks(fault(log))
        fit = legs.fit(blocks.q, AS_LOGGED.up(blocks.quat), blocks.first)
        assert (abs(fit.motion) < FOLLOWS / 10) == right


def test_single_maps_are_all_different() -> None:
    maps = {(m.source, m.signs, m.scale) for m in single_joint_maps()}
    assert len(maps) == len(single_joint_maps())
    readings = {(r.order, r.signs, r.turn) for r in READINGS}
    assert len(readings) == len(READINGS)


# Files and rows.
@pytest.fixture
def log() -> SensorLog:
    """A right log of an Aliengo."""
    return make_log(load_robot("aliengo"), Tilting(), 7)


def test_csv_npz_and_live_rows_are_the_same(log: SensorLog, tmp_path: Path) -> None:
    text = to_csv(log)
    (tmp_path / "log.csv").write_text(text)
    columns = {name: getattr(log, name) for name in WIDTHS}
    np.savez(tmp_path / "log.npz", **columns)
    told: list[int] = []

    def tell(rows: object) -> str:
        told.append(len(rows))  # type: ignore[arg-type]
        return ""

    lines = "\n".join(text.splitlines()[1:])
    for each in (
        read_log(tmp_path / "log.csv", NAMES),
        read_log(tmp_path / "log.npz", NAMES),
        read_live(io.StringIO(text), NAMES, tell),
        read_live(io.StringIO(lines), NAMES, tell),
    ):
        for name, values in columns.items():
            np.testing.assert_allclose(getattr(each, name), values, atol=1e-7)
    assert len(told) == 60, "once a second"


def test_columns_may_be_named_by_joint_in_any_order(log: SensorLog) -> None:
    header, *lines = to_csv(log).splitlines()
    names = header.split(",")
    for kind in ("q", "dq"):
        names = [
            f"{kind}_{NAMES[int(name.split('_')[1])]}" if name.startswith(f"{kind}_") else name
            for name in names
        ]
    turned = [",".join(reversed(line.split(","))) for line in (",".join(names), *lines[:3])]
    rows = np.array(list(parsed_rows(turned, NAMES, "log")))
    np.testing.assert_allclose(rows[:, 1:13], log.q[:3], atol=1e-7)


def test_ctrl_c_ends_live_rows(log: SensorLog) -> None:
    def stream() -> Iterator[str]:
        yield from to_csv(log).splitlines()
        signal.raise_signal(signal.SIGINT)
        yield "never"

    live = read_live(stream(), NAMES, lambda _: "")  # type: ignore[arg-type]
    assert len(live.time_s) == len(log.time_s)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda lines: lines[:0], "0 rows"),
        (lambda lines: lines[:1], "0 rows"),
        (lambda lines: lines[:2], "1 rows"),
        (
            lambda lines: [*lines[:5], _with_q(lines[5], "nan"), *lines[6:]],
            "row 5: q is not finite",
        ),
        (lambda lines: [*lines[:5], _with_q(lines[5], "1e99"), *lines[6:]], "q is no sensor's"),
        (lambda lines: lines[1:], "its header lacks time_s"),
        (lambda lines: [lines[0].replace("gyro_z", "gyro"), *lines[1:]], "header lacks gyro_z"),
        (lambda lines: [*lines[:5], lines[5] + "x", *lines[6:]], "line 6 is no row of numbers"),
        (lambda lines: [*lines[:5], lines[5][:9], *lines[6:]], "line 6 is no row of numbers"),
        (lambda lines: [*lines[:5], lines[5][:-12] + ",nan"], "is no row|gyro is not finite"),
        (lambda lines: [lines[0], *reversed(lines[1:])], "time_s does not ascend"),
        (lambda lines: lines[:200], "2.0 s of rows by time_s; a check needs 5 s"),
        (lambda lines: lines[:1] + lines[1::20], "fewer than 20 rows a second"),
    ],
)
def test_an_unusable_log_is_refused(log: SensorLog, tmp_path: Path, change, words: str) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "log.csv"
    path.write_text("\n".join(change(to_csv(log).splitlines())))
    with pytest.raises(ValueError, match=words):
        read_log(path, NAMES)


def _with_q(line: str, number: str) -> str:
    """A row with another number for q_3."""
    words = line.split(",")
    return ",".join([*words[:4], number, *words[5:]])


def test_bytes_of_no_text_and_too_many_are_refused(
    log: SensorLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log.csv"
    path.write_bytes(b"\xef\xbb\xbf" + to_csv(log).encode())
    assert len(read_log(path, NAMES).time_s) == len(log.time_s), "a mark of the byte order"
    path.write_bytes(b"\xff" + to_csv(log).encode())
    with pytest.raises(ValueError, match="cannot be read: 'utf-8' codec"):
        read_log(path, NAMES)
    monkeypatch.setattr(logs, "_MOST_BYTES", 1_000_000)
    for name in ("/dev/zero", tmp_path / "large.npz"):
        np.savez_compressed(tmp_path / "large.npz", time_s=np.zeros(200_000))
        with pytest.raises(ValueError, match="more than 1 MB"):
            read_log(Path(name), NAMES)


def test_times_may_count_from_1970(log: SensorLog) -> None:
    report = check_log(replace(log, time_s=log.time_s + 1.8e9), load_robot("aliengo"))
    assert report.ok


def test_another_npz_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", q=np.zeros((3, 12)))
    (tmp_path / "y.npz").write_bytes(b"no archive")
    np.save(tmp_path / "z.npy", np.zeros(3))
    (tmp_path / "z.npy").rename(tmp_path / "z.npz")
    numbers = {name: np.float64(1) for name in WIDTHS}
    np.savez(tmp_path / "w.npz", **numbers)  # type: ignore[arg-type]
    refused = {
        "x": "it lacks time_s, dq",
        "y": "cannot be read",
        "z": "cannot be read",
        "w": "1 rows",
    }
    for name, words in refused.items():
        with pytest.raises(ValueError, match=words):
            read_log(tmp_path / f"{name}.npz", NAMES)


# The command.
@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the description of an exported policy of an Aliengo, without its files."""
    folder = tmp_path_factory.mktemp("export")
    control = asdict(robot_facts(load_robot("aliengo")))
    del control["observation"], control["command"]
    description = {"format": FORMAT, "format_version": FORMAT_VERSION, "control": control}
    (folder / "policy.json").write_text(json.dumps(description))
    return folder


def test_the_commands_exit_codes_and_texts(
    run: Run, export: Path, log: SensorLog, tmp_path: Path
) -> None:
    path = tmp_path / "log.csv"
    path.write_text(to_csv(log))
    outcome = run("export", "check", export, "--log", path)
    assert outcome.code == 0
    assert outcome.out.splitlines()[-1] == "log: ok"
    path.write_text(to_csv(FAULTS["left and right swapped"][0](log)))
    outcome = run("export", "check", export, "--log", path)
    assert outcome.code == 1
    assert outcome.out.startswith("fault: q and dq: left and right legs are swapped")
    outcome = run("export", "check", export, "--log", path, "--json")
    assert outcome.code == 1
    (finding,) = json.loads(outcome.out)["log"]["findings"]
    assert finding["kind"] == "order"
    assert finding["joints"] == list(NAMES)
    path.write_text(to_csv(make_log(load_robot("aliengo"), Tilting(pitch=0.02), 1)))
    outcome = run("export", "check", export, "--log", path)
    assert outcome.code == 1
    assert outcome.out.startswith("too little motion: pitch")
    path.write_text("nothing\n")
    assert_refused(run("export", "check", export, "--log", path), "its header lacks")
    other = run("export", "check", export, "--log", path, "--robot", "anymal_c")
    assert_refused(other, "the policy's joints are not those of anymal_c")


def test_live_rows_tell_what_motion_lacks(
    run: Run, export: Path, log: SensorLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(to_csv(log)))
    outcome = run("export", "check", export, "--log", "-")
    assert outcome.code == 0
    assert "stand still on four feet" in outcome.err
    assert "pitch 0.31 of 0.1 rad" in outcome.err
    assert "enough, end with Ctrl-C" in outcome.err


def test_the_usual_log_is_checked_in_time(log: SensorLog) -> None:
    """30 s at 100 Hz: 2 s where it is right, 10 s where it is wrong, by CPU time."""
    card = load_robot("aliengo")
    for wrong, limit in ((False, 2.0), (True, 10.0)):
        each = FAULTS["signs of calves"][0](log) if wrong else log
        started = time.process_time()
        check_log(each, card)
        assert time.process_time() - started < limit
    assert ROW == 32
