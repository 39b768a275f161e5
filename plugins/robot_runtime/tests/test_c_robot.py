"""C code on a robot: sensors to joint targets, inputs and files that it refuses, and its loop."""

import ctypes
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gaitforge.collectors.legged.observations import policy_observation
from gaitforge.collectors.robots.kinematics import C, ramped
from gaitforge.collectors.robots.robot import load_robot
from gaitforge.collectors.rotations import gravity_in_body
from gaitforge.flows.stages.transfer import robot_facts
from gaitforge.learners.control.control import LearnedPolicy
from gaitforge.learners.export.export import PolicyExportOptions
from gaitforge.plugins.robot_runtime.c_code import writing
from gaitforge.plugins.robot_runtime.c_code.compiling import compile_c
from gaitforge.plugins.robot_runtime.c_code.loop import CPolicy
from gaitforge.plugins.robot_runtime.c_code.tables import comment, float_literal, text_literal
from gaitforge.plugins.robot_runtime.runtimes.stateless import StatelessOptions, fixed_command
from gaitforge.plugins.robot_runtime.tests.c_builds import STRICT, c_files, load_c, needs
from gaitforge.plugins.robot_runtime.tests.robots import small_export
from tests.learners.control.exporting import FACTS, export_small, small_policy
from tests.learners.making import Seen

OK, NOT_FINITE = 0, 1
WIDE = replace(FACTS, action_scale_rad=2.0)
"""A robot whose targets meet their limits."""
ONLY_C = PolicyExportOptions(("c",))


class Robot:
    """The functions of one robot's C code, by ctypes."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self.state = np.zeros(library.batch_state_bytes() // 8 + 1, np.int64)
        self.reset()

    def reset(self) -> None:
        self._library.policy_reset(place(self.state))

    def step(self, sensors: np.ndarray, command: np.ndarray) -> tuple[int, np.ndarray]:
        """sensors (31,): quaternion, gyroscope, q, dq -> code and targets (12,)."""
        target = np.full(12, 99.0, np.float32)
        given = sensors.astype(np.float32), command.astype(np.float32)
        words = [place(self.state), *(place(each) for each in given), place(target)]
        return self._library.policy_step(*words), target

    def places(self, names: tuple[str, ...]) -> tuple[int, list[int]]:
        """policy_map: how many joints lack, and their places."""
        found = (ctypes.c_int * 12)()
        words = (ctypes.c_char_p * len(names))(*(name.encode() for name in names))
        return self._library.policy_map(words, len(names), found), list(found)


def place(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The C files of a small MLP over the last steps, which takes a return."""
    with pytest.MonkeyPatch.context() as patch:
        return dict(c_files(small_policy("history-mlp", "return")[0], patch, WIDE))


@pytest.fixture(scope="module")
def library(files: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    needs("cc")
    return load_c(files, tmp_path_factory.mktemp("library"))


def sensed(rng: np.random.Generator) -> np.ndarray:
    """(31,) quaternion, gyroscope, q and dq of a robot that is tilted."""
    quaternion = rng.normal(size=4)
    parts = quaternion / np.linalg.norm(quaternion), rng.normal(size=27)
    return np.concatenate(parts).astype(np.float32)


def test_sensors_become_the_products_targets(library: ctypes.CDLL) -> None:
    """The observation, the ramps of a command that changes, the action and its limits."""
    policy, _ = small_policy("history-mlp", "return")
    learned = LearnedPolicy(policy, 1, action_limit=FACTS.action_limit)
    learned.reset(np.arange(1))
    robot = Robot(library)
    rng = np.random.default_rng(0)
    command = np.zeros((1, 16))
    last = np.zeros((1, 12), np.float32)
    margin = FACTS.target_margin_rad
    lower = np.array(FACTS.joint_lower_rad) - margin
    upper = np.array(FACTS.joint_upper_rad) + margin
    clipped = 0
    for t in range(40):
        wanted = np.full((1, 16), 0.3 if t < 20 else -0.2)
        wanted[0, C.ACCEL_LIMIT] = 1.5
        command = ramped(wanted, np.array([0.02 if t else 0.0]), command)
        sensors = sensed(rng)
        gyro, pos, vel = (sensors[None, a:b].astype(float) for a, b in ((4, 7), (7, 19), (19, 31)))
        gravity = gravity_in_body(sensors[None, :4].astype(float))
        obs = policy_observation(gravity, vel, pos, gyro, last, command, np.zeros((1, 30)))
        reward = np.full(1, policy.return_at(1.0) / 192, np.float32)
        last = learned.act(Seen(obs, reward))
        target = np.array(WIDE.default_joint_pos_rad) + WIDE.action_scale_rad * last[0]
        code, got = robot.step(sensors, wanted[0])
        assert code == OK
        np.testing.assert_allclose(got, np.clip(target, lower, upper), atol=1e-5)
        clipped += int(((target < lower) | (target > upper)).sum())
    assert clipped > 0


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf, 2e6])
@pytest.mark.parametrize("which", [0, 5, 8, 20, 33])
def test_a_wrong_number_is_refused_before_the_state_changes(
    library: ctypes.CDLL, number: float, which: int
) -> None:
    robot = Robot(library)
    sensors = sensed(np.random.default_rng(1))
    command = np.full(16, 0.1)
    robot.step(sensors, command)
    kept = robot.state.copy()
    values = np.concatenate([sensors, command])
    values[which] = number
    if number == 2e6 and which in (5, 20, 33):  # large, but a number
        return
    code, target = robot.step(values[:31], values[31:])
    assert code == NOT_FINITE
    assert (target == 99.0).all()
    np.testing.assert_array_equal(robot.state, kept)


def test_a_quaternion_that_is_none_is_refused(library: ctypes.CDLL) -> None:
    sensors = sensed(np.random.default_rng(1))
    sensors[:4] = 0.0
    assert Robot(library).step(sensors, np.zeros(16))[0] == NOT_FINITE


def test_joints_are_found_by_name(library: ctypes.CDLL) -> None:
    robot = Robot(library)
    names = (*FACTS.joint_names[6:], "arm", *FACTS.joint_names[:6])
    assert robot.places(names) == (0, [*range(7, 13), *range(6)])
    assert robot.places(names[1:]) == (1, [*range(6, 12), -1, *range(5)])
    assert robot.places((*names, names[0]))[0] == 1, "a name that is there twice"


def test_motors_have_their_places(library: ctypes.CDLL) -> None:
    places = (ctypes.c_int32 * 12).in_dll(library, "policy_motor_places")
    assert [FACTS.motor_names[place] for place in places] == list(FACTS.joint_names)


# What is refused.
def main_says(
    contents: dict[str, bytes], folder: Path, *flags: str, words: tuple[str, ...] = ()
) -> tuple[int, str]:
    """Exit code and output of policy_main."""
    names = (
        ("policy.c", "main.c")
        if "-DPOLICY_BLOB" in flags
        else ("policy.c", "policy_weights.c", "main.c")
    )
    compile_c(contents, names, folder, folder / "policy_main", (*STRICT, "-O0", *flags))
    run = subprocess.run(
        [folder / "policy_main", *words], cwd=folder, capture_output=True, text=True, check=False
    )
    return run.returncode, run.stdout


def test_one_changed_weight_is_refused(files: dict[str, bytes], tmp_path: Path) -> None:
    needs("cc")
    lines = files["policy_weights.c"].decode().splitlines()
    row = next(i for i, line in enumerate(lines) if line.startswith("    ") and "0.0f" not in line)
    first, _, rest = lines[row].strip().partition(",")
    changed = np.nextafter(np.float32(first.rstrip("f")), np.float32(9))
    lines[row] = f"    {float_literal(changed)},{rest}"
    spoiled = files | {"policy_weights.c": "\n".join(lines).encode()}
    assert main_says(spoiled, tmp_path) == (1, "check: the weights are wrong\n")
    code, said = main_says(files, tmp_path)
    assert (code, said.splitlines()[0]) == (0, "check: right")


def test_wrong_answers_are_refused(files: dict[str, bytes], tmp_path: Path) -> None:
    needs("cc")
    text = files["policy.c"].decode().replace("inverse * scale[i]", "scale[i]")
    text = text.replace("0.5f * x[c] + fabsf", "0.51f * x[c] + fabsf")
    code, said = main_says(files | {"policy.c": text.encode()}, tmp_path)
    assert (code, said.splitlines()[0]) == (1, "check: the answers are wrong")


def test_a_cut_or_changed_blob_is_refused(files: dict[str, bytes], tmp_path: Path) -> None:
    needs("cc")
    blob = files["policy_weights.bin"]
    code, said = main_says(files, tmp_path, "-DPOLICY_BLOB")
    assert (code, said.splitlines()[0]) == (0, "check: right")
    flipped = bytearray(blob)
    flipped[200] ^= 1
    for spoiled in (blob[:-1], blob[:16], b"", bytes(flipped), blob + b"x", b"x" + blob[1:]):
        (tmp_path / "policy_weights.bin").write_bytes(spoiled)
        run = subprocess.run(
            [tmp_path / "policy_main"], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert (run.returncode, run.stdout) == (1, "check: the weights are wrong\n")
    (tmp_path / "policy_weights.bin").unlink()
    run = subprocess.run(
        [tmp_path / "policy_main"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (run.returncode, run.stdout) == (1, "check: the weights are not loaded\n")


@pytest.mark.parametrize("flag", ["-ffast-math", "-Ofast", "-ffinite-math-only"])
def test_unsafe_arithmetic_is_refused(files: dict[str, bytes], tmp_path: Path, flag: str) -> None:
    needs("cc")
    with pytest.raises(ValueError, match=r"policy\.c must be built without"):
        main_says(files, tmp_path, flag)


def test_the_header_is_cpp_too(files: dict[str, bytes], tmp_path: Path) -> None:
    needs("g++")
    main = tmp_path / "main.cpp"
    main.write_text('#include "policy.h"\nint main() { return POLICY_OK; }\n')
    words = ["g++", "-std=c++11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only"]
    codes = {}
    for name, further in (("ours", b""), ("of C alone", b"void f(int *restrict x);\n")):
        (tmp_path / "policy.h").write_bytes(files["policy.h"] + further)
        codes[name] = subprocess.run(
            [*words, str(main)], capture_output=True, check=False, timeout=100
        ).returncode
    assert codes["ours"] == 0
    assert codes["of C alone"] != 0, "the compiler sees what is C alone"


def test_a_name_cannot_bring_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names of a robot's card end neither a text nor a comment."""
    bad = 'x"; */ int hidden; /* ??/'
    facts = replace(
        FACTS,
        robot=bad,
        joint_names=(bad, *FACTS.joint_names[1:]),
        motor_names=(bad, *FACTS.joint_names[1:]),
    )
    written = c_files(small_policy("mlp")[0], monkeypatch, facts)
    for name in ("policy.h", "policy.c"):
        text = written[name].decode()
        assert bad not in text
        assert "*/ int hidden" not in text
        assert '"; ' not in text.replace("\\042", "")


def test_a_robot_of_ones_own_has_its_check_with_the_policys_pose(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its card comes with the export; without it a note says what is missing."""
    monkeypatch.setattr(writing, "compiler", lambda: None)
    go2 = load_robot("go2")
    names = tuple(f"my_{name}" for name in go2.joint_names)
    card = replace(go2, name="dog", joint_names=names, motor_names=names[::-1])
    pose = tuple(float(angle) + 0.01 * k for k, angle in enumerate(go2.default_joint_pos_rad))
    export = small_export(facts=replace(robot_facts(card), default_joint_pos_rad=pose))
    assert "robot_check.c" not in (unknown := writing.write_c(export, None)).files
    assert any("no card of dog" in note for note in unknown.notes)
    written = writing.write_c(replace(export, robot=card), None).files
    tables = written["robot_check_tables.h"].decode()
    row = next(line for line in tables.splitlines() if " default_pose[12]" in line)
    numbers = [float(number) for number in row.partition("{")[2].strip("};").split(",")]
    assert numbers == pytest.approx(pose)
    assert fixed_command(replace(export, robot=card), StatelessOptions()).skill == "run"
    with pytest.raises(ValueError, match="no robot 'dog'"):
        fixed_command(export, StatelessOptions())


@given(st.text(max_size=20))
def test_texts_keep_to_their_quotes_and_comments(text: str) -> None:
    literal = text_literal(text)
    assert literal.isascii()
    assert not set(literal[1:-1]) & set('"\n?*')
    said = comment(text)
    assert "*/" not in said
    assert "\n" not in said


@given(st.floats(width=32, allow_nan=False))
def test_numbers_read_back_with_the_same_bits(number: float) -> None:
    largest = float(np.finfo(np.float32).max)
    read = np.float32(float_literal(number).removesuffix("f"))
    wanted = np.float32(np.clip(number, -largest, largest))
    assert read.tobytes() == wanted.tobytes()


# The runtime `c`.
@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    needs("cc")
    path = tmp_path_factory.mktemp("export") / "mlp"
    result = export_small(path, "history-mlp", "return", ONLY_C)
    assert result.errors["c"] <= 1e-5
    return path


def test_the_loop_is_the_learned_policy(folder: Path) -> None:
    """Several robots, resets at different times, rewards, and a limit that the actions meet."""
    policy, _ = small_policy("history-mlp", "return")
    limits: dict[str, Any] = {"return_target": 0.8, "action_limit": 0.7}
    exported = CPolicy(folder, 5, **limits)
    learned = LearnedPolicy(policy, 5, **limits)
    rng = np.random.default_rng(0)
    limited = 0
    for t in range(25):
        if t in (0, 4, 11):
            ids = np.arange(5) if t == 0 else np.array([1, 4])
            exported.reset(ids)
            learned.reset(ids)
        obs = rng.standard_normal((5, 70), dtype=np.float32)
        seen = Seen(obs, rng.random(5).astype(np.float32))
        expected = learned.act(seen)
        np.testing.assert_allclose(exported.act(seen), expected, atol=1e-5)
        limited += int((np.abs(expected) == np.float32(0.7)).sum())
    assert limited > 0
    assert (exported.name, exported.num_robots, exported.parameters) == ("exported", 5, 12345)
    assert exported.check_known_answers() <= 1e-5


def test_only_the_robot_that_sees_a_nan_has_no_action(folder: Path) -> None:
    obs = np.ones((3, 70), np.float32)
    obs[1, 7] = np.nan
    action = CPolicy(folder, 3).act(Seen(obs, np.zeros(3)))
    np.testing.assert_array_equal(np.isnan(action).all(axis=1), [False, True, False])
    assert np.isfinite(action[[0, 2]]).all()


def test_a_folder_that_is_not_as_described_is_refused(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match="num_robots"):
        CPolicy(folder, 0)
    with pytest.raises(ValueError, match="observations of shape"):
        CPolicy(folder, 2).act(Seen(np.zeros((3, 70)), np.zeros(3)))
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    with (tmp_path / "policy.c").open("a") as file:
        file.write("\n")
    with pytest.raises(ValueError, match=r"is not the file that policy\.json describes"):
        CPolicy(tmp_path)
    (tmp_path / "policy.c").unlink()
    with pytest.raises(ValueError, match=r"holds no policy\.c; export it with the format c"):
        CPolicy(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ValueError, match="no C compiler cc is here"):
        CPolicy(folder)


def test_without_a_compiler_the_files_are_written_unchecked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    result = export_small(tmp_path / "out", "mlp", "obs", ONLY_C)
    assert result.errors == {}
    assert any("was not run" in note for note in result.format_notes)


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("-DPOLICY_BLOB=ON", "-DPOLICY_NATIVE=ON")])
def test_cmake_builds_what_is_written(
    folder: Path, tmp_path: Path, options: tuple[str, ...]
) -> None:
    needs("cmake")
    build = tmp_path / "build"
    subprocess.run(["cmake", "-S", folder, "-B", build, *options], check=True, timeout=300)
    subprocess.run(["cmake", "--build", build], check=True, timeout=300)
    words = [build / "policy_main", folder / "policy_weights.bin"]
    assert subprocess.run(words, check=False, timeout=300).returncode == 0
