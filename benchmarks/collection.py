"""Collection beside bare `mujoco.rollout`: the share of the time that is not physics, by stage.

Collection and the bare calls alternate in one run, with the same models and inputs: the calls are
those that collecting the same parts made in a first round, which is not measured.
"""

import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial, wraps
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import median
from gaitforge.collectors.legged import environment
from gaitforge.collectors.physics.mujoco.backend import MujocoBackend
from gaitforge.collectors.policy import Observation
from gaitforge.datasets import open_store
from gaitforge.flows.progress import Advance, no_progress
from gaitforge.flows.stages.collect import prepare
from gaitforge.flows.tasks.legged import LeggedPlan
from gaitforge.plugins.papers.measures.timing import in_turns, seconds_of

ROLLOUT = "mujoco.rollout"
BACKEND = "back end around it"
OBSERVATION = "observation"
REWARD = "reward and signals"
RESET = "randomisation and reset"
POLICY = "policy"
RECORDING = "recording"
WRITING = "writing"
STAGES = (ROLLOUT, BACKEND, OBSERVATION, REWARD, RESET, POLICY, RECORDING, WRITING)


class StageClock:
    """Seconds of each stage; an inner stage pauses the clock of the outer one."""

    def __init__(self) -> None:
        self.clear()
        self._open: list[str] = []
        self._since = 0.0

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time a block as a stage."""
        self._pass()
        self._open.append(name)
        try:
            yield
        finally:
            self._pass()
            self._open.pop()

    def wrap(self, owner: Any, name: str, stage: str) -> None:
        """Time every call of a function that `owner` holds as a stage."""
        work = getattr(owner, name)

        @wraps(work)
        def timed(*arguments: Any, **named: Any) -> Any:
            with self.stage(stage):
                return work(*arguments, **named)

        setattr(owner, name, timed)

    def clear(self) -> None:
        """Forget what was timed."""
        self.seconds: dict[str, float] = dict.fromkeys(STAGES, 0.0)

    def shares(self) -> dict[str, float]:
        """Each stage's share of all that was timed."""
        total = sum(self.seconds.values())
        return {stage: seconds / total for stage, seconds in self.seconds.items()}

    def _pass(self) -> None:
        now = time.perf_counter()
        if self._open:
            self.seconds[self._open[-1]] += now - self._since
        self._since = now


def measure_collection(
    plan: LeggedPlan, rounds: int, folder: Path, advance: Advance = no_progress
) -> dict[str, Any]:
    """Collect every part of a plan, a simulator and a process each, and repeat its physics alone.

    The plan is of the default back end. `robots` are a simulator's, `ratio` is the median over
    the rounds, `stages` are shares of the first process's time.
    """
    stores = [folder / f"{plan.grid.parts}-{k}.zarr" for k in range(rounds + 1)]
    for store in stores:
        prepare(plan, store)
    left = iter(stores)
    with ExitStack() as stack:
        context = get_context("spawn")
        processes = [
            stack.enter_context(ProcessPoolExecutor(1, context, _open, (plan, part)))
            for part in plan.part_ids()
        ]

        def ask(name: str, *arguments: Any) -> list[Any]:
            asked = [each.submit(_do, name, *arguments) for each in processes]
            return [each.result() for each in asked]

        def end_round() -> None:
            ask("end_first_round")
            advance(1, "")

        stack.callback(ask, "close")
        asked = {"collect": lambda: ask("collect", next(left)), "bare": lambda: ask("repeat")}
        works = {name: partial(seconds_of, work) for name, work in asked.items()}
        seconds = in_turns(works, rounds, after_round=end_round)
        made = ask("made")
    ratios = (np.array(seconds["bare"]) / np.array(seconds["collect"])).tolist()
    steps = sum(steps for _, steps, _ in made)
    robots, _, stages = made[0]
    return {
        "threads": len(made),
        "robots": robots,
        "collect_steps_per_s": steps / median(seconds["collect"]),
        "bare_steps_per_s": steps / median(seconds["bare"]),
        "ratio": median(ratios),
        "ratios": ratios,
        "stages": stages,
    }


class _KeptCalls:
    """Wraps a `mujoco.rollout.Rollout` and can repeat the calls made through it."""

    def __init__(self, pool: Any):
        self.keep = True
        self.robot_steps = 0
        self.close = pool.close
        self._pool = pool
        self._calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def rollout(self, models: Any, datas: Any, start: Any, control: Any, /, **rest: Any) -> None:
        if self.keep:
            self._calls.append(((models, datas, start.copy(), control.copy()), rest))
            self.robot_steps += len(models)
        self._pool.rollout(models, datas, start, control, **rest)

    def repeat(self) -> None:
        """Repeat all kept calls."""
        for arguments, rest in self._calls:
            self._pool.rollout(*arguments, **rest)


class _Worker:
    """One simulator that collects the same part again and again."""

    def __init__(self, plan: LeggedPlan, part_id: str):
        self.clock = StageClock()
        self.simulation = plan.simulate()
        self._part_id = part_id
        physics = self.simulation.env.physics
        if not isinstance(physics, MujocoBackend):
            raise ValueError(f"only mujoco can be measured beside mujoco.rollout, not {plan.sim}")
        self.pool = _KeptCalls(physics.pool)
        physics.pool = self.pool
        self._time_stages()

    def collect(self, store: Path) -> None:
        """Collect the part into a store."""
        opened = open_store(store)
        with self.clock.stage(RECORDING):
            data = self.simulation.roll_out(self._part_id, opened.schema, no_progress)
        with self.clock.stage(WRITING):
            opened.write_part(self._part_id, data.steps, data.catalog, data.per_episode)

    def end_first_round(self) -> None:
        """Keep no more calls; forget the times of the round that recorded them."""
        if self.pool.keep:
            self.pool.keep = False
            self.clock.clear()

    def repeat(self) -> None:
        """Repeat the part's physics alone."""
        self.pool.repeat()

    def made(self) -> tuple[int, int, dict[str, float]]:
        """Parallel robots, control steps of a round, and the shares of the stages."""
        return self.simulation.env.num_robots, self.pool.robot_steps, self.clock.shares()

    def close(self) -> None:
        self.simulation.close()

    def _time_stages(self) -> None:
        env = self.simulation.env
        clock = self.clock
        policy = self.simulation.policy
        clock.wrap(env.physics, "step", BACKEND)
        clock.wrap(env.physics, "push", BACKEND)
        clock.wrap(self.pool, "rollout", ROLLOUT)
        clock.wrap(env, "step", OBSERVATION)
        clock.wrap(env, "observe", OBSERVATION)
        clock.wrap(env, "reset", RESET)
        clock.wrap(policy, "act", POLICY)
        act = policy.act

        def observed_act(observation: Observation) -> np.ndarray:
            with clock.stage(OBSERVATION):
                _ = observation.privileged  # computed when it is first read
            return act(observation)

        policy.act = observed_act
        for name in ("total_reward", "signals"):
            clock.wrap(environment, name, REWARD)


_workers: list[_Worker] = []
"""The one of this process."""


def _open(plan: LeggedPlan, part_id: str) -> None:
    _workers.append(_Worker(plan, part_id))


def _do(name: str, *arguments: Any) -> Any:
    return getattr(_workers[0], name)(*arguments)
