"""A Go2 on flat ground, bare and collected, beside simulators of other projects, in one run.

All run on one thread and take turns. A rate is per second of CPU time, so that other load on the
machine counts little.

MuJoCoUni (UniLab's pool) and EnvPool ask for older versions of MuJoCo than this project, so they
have an environment of their own; `INSTALL` makes it.
"""

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
from mujoco.rollout import Rollout

from benchmarks.harness import Rows, median
from gaitforge.collectors.legged.data import CollectionGrid
from gaitforge.collectors.robots.kinematics import standing_height_m
from gaitforge.collectors.robots.robot import RobotCard, load_robot
from gaitforge.collectors.timing import DECIMATION, GRAVITY_MS2, SUBSTEP_S
from gaitforge.datasets import open_store
from gaitforge.flows.progress import no_progress
from gaitforge.flows.stages.collect import prepare
from gaitforge.flows.tasks.legged import LeggedPlan
from gaitforge.plugins.papers.measures.timing import in_turns

PYTHON = "GAITFORGE_SIM_PEERS_PYTHON"
"""Variable: the Python of an environment with the peers."""
FOLDER = Path("build/sim-peers")
INSTALL = (
    f"uv venv --python 3.11 {FOLDER} && "
    f"uv pip install --python {FOLDER}/bin/python envpool==1.2.5 mujoco-uni-runtime==0.5.0"
)
_PROGRAM = Path(__file__).with_name("sim_peer_program.py")
_GO2 = "go2"
_EXPERT = "go2-locomotion"
_TERRAIN = "flat"


@dataclass(frozen=True)
class PeerSizes:
    """Sizes of the measurements.

    Attributes:
        robots: of a batch of `mujoco.rollout` and the peers; seconds: of one of their measurements.
        episodes: of a part that is collected; together: robots that collect them, at most.
        rounds: of all in turns.
    """

    robots: int = 64
    seconds: float = 2.0
    episodes: int = 320
    together: int = 320
    rounds: int = 5


@dataclass(frozen=True)
class Peer:
    """A simulator or task to measure.

    Attributes:
        name: what the program knows it by, or this project's own.
        physics_steps: in a control step.
        does: what a step holds beside physics.
    """

    name: str
    physics_steps: int
    does: str


BARE = Peer("mujoco.rollout, Go2", DECIMATION, "nothing")
COLLECTED = Peer(
    "gaitforge collect, Go2",
    DECIMATION,
    "expert, randomisation, delay, observation, reward, resets, compressed store",
)
PEERS = (
    Peer("mujoco-uni", DECIMATION, "nothing; the same Go2 as mujoco.rollout's"),
    # Substeps: the tasks' ctrl_dt / sim_dt, 0.02 s / 0.004 s, and frame_skip 5.
    Peer("envpool Go1JoystickFlatTerrain-v1", 5, "observation, reward; stands, actions of zero"),
    Peer("envpool Ant-v4", 5, "observation, reward; RK4: 20 evaluations; actions of zero"),
)


def measure_peers(sizes: PeerSizes, folder: Path) -> tuple[Rows, list[str]]:
    """Rows of all that can be measured here, and lines on what is missing."""
    robot = load_robot(_GO2)
    model_file = folder / "go2.xml"
    model_file.write_text(_on_a_plane(robot))
    works: dict[str, Callable[[], dict[str, Any]]] = {}
    rows = [BARE, COLLECTED]
    notes = []
    with ExitStack() as stack:
        works[BARE.name] = stack.enter_context(_bare(model_file, sizes))
        works[COLLECTED.name] = stack.enter_context(_collected(folder / "go2.zarr", sizes))
        python = Path(os.environ.get(PYTHON, FOLDER / "bin/python"))
        if python.is_file():
            ask = stack.enter_context(_program(python, model_file, sizes))
            works |= {peer.name: partial(ask, peer.name) for peer in PEERS}
            rows += PEERS
        else:
            notes.append(f"MuJoCoUni and EnvPool were not measured: {INSTALL}")
        measured = in_turns(works, sizes.rounds)
    return [_row(peer, measured[peer.name]) for peer in rows], notes


def _row(peer: Peer, rounds: list[dict[str, Any]]) -> dict[str, Any]:
    rate = median([each["steps"] / each["cpu_s"] for each in rounds])
    return {
        "simulator": peer.name,
        "version": rounds[0]["version"],
        "steps_per_cpu_s": rate,
        "physics_steps_per_cpu_s": rate * peer.physics_steps,
        "beside_physics": peer.does,
    }


def _on_a_plane(robot: RobotCard) -> str:
    """MJCF of a robot on a plane that holds its default posture, with its servos.

    The keyframe is that posture; the numeric `substeps` says how many make a control step.
    """
    spec = mujoco.MjSpec.from_file(str(robot.mjcf_path))
    spec.worldbody.add_geom(
        type=mujoco.mjtGeom.mjGEOM_PLANE, size=[0.0, 0.0, 0.05], contype=1, conaffinity=0
    )
    for index, joint in enumerate(robot.joint_names):
        servo = spec.add_actuator(
            name=joint, trntype=mujoco.mjtTrn.mjTRN_JOINT, target=joint, ctrllimited=False
        )
        servo.set_to_position(kp=robot.kp_nm_per_rad[index], kv=robot.kd_nms_per_rad[index])
    spec.option.timestep = SUBSTEP_S
    spec.option.gravity = [0.0, 0.0, -GRAVITY_MS2]
    posture = robot.default_joint_pos_rad.tolist()
    height = standing_height_m(robot)
    spec.add_key(qpos=[0.0, 0.0, height, 1.0, 0.0, 0.0, 0.0, *posture], ctrl=posture)
    spec.add_numeric(name="substeps", size=1, data=[DECIMATION])
    spec.compile()
    # MuJoCo 3.17 writes this attribute's default, which the peers' versions do not know.
    return spec.to_xml().replace(' input="pos"', "")


@contextmanager
def _bare(model_file: Path, sizes: PeerSizes) -> Iterator[Callable[[], dict[str, Any]]]:
    """Measures `mujoco.rollout` on one thread: robots that hold their posture."""
    model = mujoco.MjModel.from_xml_path(str(model_file))
    data = mujoco.MjData(model)
    mujoco.mj_resetDataKeyframe(model, data, 0)
    full = mujoco.mjtState.mjSTATE_FULLPHYSICS
    state = np.empty((sizes.robots, mujoco.mj_stateSize(model, full)))
    mujoco.mj_getState(model, data, state[0], full)
    state[1:] = state[0]
    control = np.tile(data.ctrl, (sizes.robots, DECIMATION, 1))
    models = [model] * sizes.robots
    with Rollout(nthread=0) as pool:

        def measure() -> dict[str, Any]:
            count = 0
            wall = time.perf_counter()
            cpu = time.process_time()
            while time.perf_counter() - wall < sizes.seconds:
                states, _ = pool.rollout(models, [data], state, control, skip_checks=False)
                state[:] = states[:, -1]
                count += sizes.robots
            spent = time.process_time() - cpu
            return {"steps": count, "cpu_s": spent, "version": mujoco.__version__}

        yield measure


@contextmanager
def _collected(store: Path, sizes: PeerSizes) -> Iterator[Callable[[], dict[str, Any]]]:
    """Measures the collection of a part a call, from its first reset to the part in the store."""
    parts = sizes.rounds + 1  # one to warm up
    grid = CollectionGrid(parts=parts, episodes_per_part=sizes.episodes, terrains=(_TERRAIN,))
    plan = LeggedPlan(grid=grid, robot=_GO2, expert=_EXPERT, robots=sizes.together, threads=1)
    prepare(plan, store)
    opened = open_store(store)
    left = iter(plan.part_ids())
    with closing(plan.simulate()) as simulation:

        def measure() -> dict[str, Any]:
            part = next(left)
            cpu = time.process_time()
            rolled = simulation.roll_out(part, opened.schema, no_progress)
            opened.write_part(part, rolled.steps, rolled.catalog, rolled.per_episode)
            spent = time.process_time() - cpu
            steps = len(rolled.steps["obs"])
            return {"steps": steps, "cpu_s": spent, "version": mujoco.__version__}

        yield measure


@contextmanager
def _program(
    python: Path, model_file: Path, sizes: PeerSizes
) -> Iterator[Callable[[str], dict[str, Any]]]:
    """Asks the peers' program to measure a simulator by its name.

    Raises:
        ValueError: the program ended; its last line is in the message.
    """
    command = [str(python), _PROGRAM, model_file, str(sizes.robots), str(sizes.seconds)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        asked, answers, errors = process.stdin, process.stdout, process.stderr
        assert asked is not None
        assert answers is not None
        assert errors is not None

        def ask(name: str) -> dict[str, Any]:
            asked.write(f"{name}\n")
            asked.flush()
            line = answers.readline()
            if not line:
                said = errors.read().strip().splitlines() or ["nothing"]
                raise ValueError(f"the program of the peers, {python}, ended: {said[-1]}")
            return json.loads(line)

        try:
            yield ask
        finally:
            asked.close()
            process.wait(timeout=30)
