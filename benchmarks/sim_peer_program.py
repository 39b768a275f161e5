"""Steps simulators of other projects: run by the Python of an environment that has them.

`python sim_peer_program.py MODEL ROBOTS SECONDS`. For each name that comes as a line, the steps of
that simulator and the CPU time they took go out as one line of JSON. It imports nothing of this
project, which cannot be installed there.
"""

import json
import sys
import time
from collections.abc import Callable
from importlib.metadata import version

import numpy as np

WARM_UP = 20


def mujoco_uni(model_file: str, robots: int) -> Callable[[], object]:
    """A control step of MuJoCoUni's pool: each robot holds the first keyframe's posture."""
    import mujoco
    from mujoco_uni.batch_env import BatchEnvPool  # pyright: ignore[reportMissingImports]

    model = mujoco.MjModel.from_xml_path(model_file)
    data = mujoco.MjData(model)
    mujoco.mj_resetDataKeyframe(model, data, 0)
    full = mujoco.mjtState.mjSTATE_FULLPHYSICS
    state = np.empty(mujoco.mj_stateSize(model, full))
    mujoco.mj_getState(model, data, state, full)
    substeps = int(model.numeric("substeps").data[0])
    control = np.tile(data.ctrl, (robots, substeps, 1))
    pool = BatchEnvPool(model, nbatch=robots, nthread=0)
    held = [np.tile(state, (robots, 1))]

    def step() -> None:
        kind = int(mujoco.mjtState.mjSTATE_CTRL)
        held[0] = pool.step(held[0], nstep=substeps, control_spec=kind, control=control)

    return step


def envpool(task: str, robots: int) -> Callable[[], object]:
    """A step of one of EnvPool's tasks, on one thread, with actions of zero."""
    import envpool as package  # pyright: ignore[reportMissingImports]

    env = package.make(task, env_type="gymnasium", num_envs=robots, num_threads=1)
    env.reset()
    action = np.zeros((robots, *env.action_space.shape), env.action_space.dtype)
    return lambda: env.step(action)


def main() -> None:
    """Answer the names on standard input until it ends."""
    model_file, robots, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    steps: dict[str, Callable[[], object]] = {}
    for line in sys.stdin:
        name = line.strip()
        if name not in steps:
            task = name.removeprefix("envpool ")
            ours = name == "mujoco-uni"
            steps[name] = mujoco_uni(model_file, robots) if ours else envpool(task, robots)
            for _ in range(WARM_UP):
                steps[name]()
        count = 0
        wall = time.perf_counter()
        cpu = time.process_time()
        while time.perf_counter() - wall < seconds:
            steps[name]()
            count += robots
        package = "mujoco-uni-runtime" if name == "mujoco-uni" else "envpool"
        answer = {"steps": count, "cpu_s": time.process_time() - cpu, "version": version(package)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
