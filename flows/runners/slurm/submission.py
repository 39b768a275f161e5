"""Submits stages as Slurm jobs, in as many jobs and tasks as the cluster takes.

A stage that collects is an array over its parts where these can be named already. Other stages of
one kind (the first word of their names) that wait for the same jobs are one array, whose tasks run
the command line of a stage each; any other stage is one job. A task of an evaluation's array waits
for the task of the same number of the trainings' array alone. What waits for a job that failed is
cancelled; submitting again submits what is neither done nor in a live job.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from gaitforge.common.errors import amount, listed
from gaitforge.flows.progress import Reporter, Silent
from gaitforge.flows.runners.slurm import jobs
from gaitforge.flows.runners.slurm.chain import live_jobs
from gaitforge.flows.runners.slurm.commands import Limits, TooManyJobs, Waits, jobs_left, limits
from gaitforge.flows.runners.slurm.drafts import Collected, Draft, collected, estimates
from gaitforge.flows.runners.slurm.runner import TRAIN_REQUEUES, run_slurm, submit_work
from gaitforge.flows.runners.slurm.script import JobWork, SlurmSettings
from gaitforge.flows.stages.stage import CollectionStage, Stage, left_stages, ready_stages


def submit_stages(
    out: Path,
    stages: Sequence[Stage],
    words: Sequence[str],
    settings: SlurmSettings,
    reporter: Reporter | None = None,
    only: Stage | None = None,
) -> list[jobs.Job | Draft]:
    """Submit what is neither done nor in a live job, each stage after those that it needs.

    Args:
        words: the command line of the stages; of several, it does one with `--stage NAME`.
        only: the one of them to submit; None for all.

    Returns:
        The new jobs, or with `dry_run` their drafts.

    Raises:
        ValueError: no Slurm, or its reason to refuse; then no new job is left. Or `only` needs a
            stage that is neither done nor in a live job.
    """
    asked = stages if only is None else (only,)
    _check_request(asked, settings)
    reporter = reporter or Silent()
    idle = [stage.name for stage in asked if stage.trains and stage.device == "cpu"]
    if settings.gpus and idle:
        names = listed(idle, 3)
        reporter.say(f"GPUs stay idle: {names} with device=cpu; --device cuda trains on them")
    known = limits(settings.account, settings.qos)
    submission = _Submission(out, stages, words, settings, reporter, known, only)
    if settings.dry_run:
        return submission.submit(None)
    room = jobs_left(known)
    reason = ""
    for _ in range(2):
        try:
            new = submission.submit(room)
        except TooManyJobs as error:
            # A limit that only sbatch's refusal tells: as many as it took.
            room = submission.taken
            reason = str(error)
            if room == 0:
                break
            continue
        for line in estimates(submission.drafts):
            reporter.say(line)
        return new
    raise ValueError(
        f"{reason}; the cluster takes no more jobs of yours now, none of this command is left: "
        "submit again once some have ended, or give a smaller --size, or larger --parts-per-task"
    )


REST = "remaining stages"
"""Kind of a job that does several stages, one after another."""


@dataclass(frozen=True)
class _Awaited:
    """What does a stage that another one waits for: a job, or a task of an array.

    Attributes:
        id, kind: of the job; tasks: of the array.
    """

    id: str
    kind: str
    task: int | None = None
    tasks: int = 1


@dataclass
class _Submission:
    """One call of `submit_stages`.

    Attributes:
        known: the cluster's limits.
        taken: jobs and tasks that sbatch took in the last try; drafts: its jobs.
    """

    out: Path
    stages: Sequence[Stage]
    words: Sequence[str]
    settings: SlurmSettings
    reporter: Reporter
    known: Limits
    only: Stage | None = None
    taken: int = 0
    drafts: list[Draft] = field(default_factory=list)
    _new: list[jobs.Job | Draft] = field(default_factory=list)
    _by_stage: dict[str, list[_Awaited]] = field(default_factory=dict)
    """What does each stage that is not done."""

    def submit(self, room: int | None) -> list[jobs.Job | Draft]:
        """Submit all; with `room`, in at most so many jobs and tasks. Else none is left."""
        self.taken = 0
        self.drafts = []
        self._new = []
        self._by_stage = {}
        try:
            self._submit(room)
        except BaseException:
            self.taken = self._used
            for job in self._new:
                if isinstance(job, jobs.Job):
                    jobs.cancel_job(job)
            raise
        return self._new

    @property
    def _used(self) -> int:
        return sum(len(job.tasks) for job in self._new if isinstance(job, jobs.Job))

    def _submit(self, room: int | None) -> None:
        live = {} if self.settings.dry_run else live_jobs(self.out, self.stages)
        left = left_stages(self.out, self.stages)
        for stage in left:
            self._by_stage[stage.name] = [_awaited(job, stage) for job in live.get(stage.name, [])]
        wanted = [stage for stage in left if self.only is None or stage.name == self.only.name]
        if self.only is not None and not self.settings.dry_run:
            _check_needed(self.only, self._by_stage)
        names = {stage.name for stage in left}
        arrays = [
            stage
            for stage in wanted
            if isinstance(stage, CollectionStage) and names.isdisjoint(stage.after)
        ]
        pending = [stage for stage in wanted if not live.get(stage.name)]
        share = _array_share(pending, arrays, room)
        for stage in arrays:  # the missing parts that no live job makes
            if not self._rest_alone(pending, room):
                self._collect(stage, live.get(stage.name, []), share)
                pending = [other for other in pending if other.name != stage.name]
        while pending:
            for group in self._groups(ready_stages(pending)):
                fits = self._fitting(group, pending, room)
                self._submit_group(group[:fits])
                done = {stage.name for stage in group[:fits]}
                pending = [stage for stage in pending if stage.name not in done]
                if fits < len(group) or self._rest_alone(pending, room):
                    self._submit_rest(pending)
                    return

    def _rest_alone(self, pending: Sequence[Stage], room: int | None) -> bool:
        """Whether what is pending has to share the last job."""
        return room is not None and len(pending) > 1 and room - self._used <= 1

    def _fitting(self, group: Sequence[Stage], pending: Sequence[Stage], room: int | None) -> int:
        """How many of a group find room; one job is kept for what does not."""
        if room is None or len(pending) == 1:
            return len(group)
        free = room - self._used
        return len(group) if len(pending) <= free else max(0, min(len(group), free - 1))

    def _collect(self, stage: CollectionStage, live: Sequence[jobs.Job], share: int) -> None:
        """Submit an array over the parts of a stage that no live job makes."""
        if not all(job.makes_parts for job in live):
            return  # one job makes all of them
        plan = stage.collection()
        gpus = min(self.settings.gpus, plan.processor == "cuda")
        settings = replace(_on_one_node(self.settings, gpus), max_tasks=share)
        job = run_slurm(plan, stage.place, self.reporter, stage.parts, settings)
        if not isinstance(job, list):
            parts = [part for task in job.tasks for part in task]
            self._note(job, settings, Waits(), collected(plan, stage.place, parts))
            self._by_stage[stage.name].append(_Awaited(self._id(job), job.kind))

    def _groups(self, ready: Sequence[Stage]) -> list[list[Stage]]:
        """Stages that can be tasks of one array: of one kind and size, after the same jobs."""
        groups: dict[object, list[Stage]] = {}
        for stage in ready:
            key: object = stage.name
            verb = stage.name.partition(" ")[0]
            if len(self.stages) > 1 and verb != jobs.COLLECT:
                awaited = frozenset(entry.id for entry in self._needs(stage))
                key = (verb, _resources(stage, self.settings), awaited)
            groups.setdefault(key, []).append(stage)
        return [part for group in groups.values() for part in self._split(group)]

    def _needs(self, stage: Stage) -> list[_Awaited]:
        """What does the stages that a stage waits for."""
        return [entry for name in stage.after for entry in self._by_stage.get(name, [])]

    def _split(self, group: list[Stage]) -> list[list[Stage]]:
        """A group whose tasks wait for all of a job, or task by task; or several of such."""
        needs = [self._needs(stage) for stage in group]
        if _is_one_array(needs):
            return [group]
        parts: dict[object, list[Stage]] = {}
        for stage, needed in zip(group, needs, strict=True):
            parts.setdefault(frozenset(needed), []).append(stage)
        return list(parts.values())

    def _submit_group(self, group: Sequence[Stage]) -> None:
        """Submit stages as few arrays, or as jobs where the cluster has no arrays."""
        left = list(group)
        most = max(1, self.known.array_tasks)
        while left:
            chunk = left[:most]
            try:
                self._submit_tasks(chunk)
            except TooManyJobs:
                if len(chunk) == 1:
                    raise
                most = len(chunk) // 2
                continue
            left = left[len(chunk) :]

    def _submit_tasks(self, chunk: Sequence[Stage]) -> None:
        """Submit one stage as a job, or several as the tasks of an array."""
        waits = _waits([self._needs(stage) for stage in chunk])
        [first, *others] = chunk
        settings = _resources(first, self.settings)
        if others:
            tasks = tuple((stage.name,) for stage in chunk)
            job = self._run(first.name.partition(" ")[0], self.words, settings, waits, tasks)
        else:
            several = len(self.stages) > 1
            line = [*self.words, "--stage", first.name] if several else self.words
            job = self._run(first.name, line, settings, waits)
        self._note(job, settings, waits, _collected_later(first))
        for k, stage in enumerate(chunk):
            task = k if others else None
            self._by_stage[stage.name] = [_Awaited(self._id(job), job.kind, task, len(chunk))]

    def _submit_rest(self, waiting: Sequence[Stage]) -> None:
        """Submit one job for stages that do not fit; after all others it does what is left."""
        settings = self.settings
        if any(stage.trains for stage in waiting) and settings.nodes * settings.processes > 1:
            raise TooManyJobs(
                f"{amount(len(waiting), 'stage')} would have to share one job, which trainings of "
                "several processes cannot"
            )
        names = tuple(stage.name for stage in waiting)
        self.reporter.say(f"the cluster takes no more jobs: one does {listed(names)}")
        waits = _waits([[entry for group in self._by_stage.values() for entry in group]])
        largest = max((_resources(stage, settings) for stage in waiting), key=lambda s: s.gpus)
        on_one_node = replace(largest, nodes=1)
        job = self._run(REST, self.words, on_one_node, waits, stages=names)
        self._note(job, on_one_node, waits)

    def _run(
        self,
        kind: str,
        words: Sequence[str],
        settings: SlurmSettings,
        waits: Waits,
        tasks: tuple[tuple[str, ...], ...] = ((),),
        stages: tuple[str, ...] = (),
    ) -> jobs.Job | Draft:
        """Submit a command line of gaitforge, whose tasks do a stage each where they name one."""
        array = len(tasks) > 1
        work = JobWork(
            f"gaitforge-{kind.replace(' ', '-')}", len(tasks), array, False, TRAIN_REQUEUES
        )
        folder = self.out.absolute() / "jobs"
        target = str(self.out.absolute())
        draft = jobs.Job(
            folder, "", kind, target, 0.0, settings.partition, (), tasks, stages=stages
        )
        return submit_work(draft, {jobs.WORDS: list(words)}, work, settings, waits=waits)

    def _id(self, job: jobs.Job | Draft) -> str:
        """A job's id; of a draft a name that no job has."""
        return job.id if isinstance(job, jobs.Job) else f"draft {len(self._new)}"

    def _note(
        self,
        job: jobs.Job | Draft,
        settings: SlurmSettings,
        waits: Waits,
        estimate: Collected | None = None,
    ) -> None:
        """Keep a new job, and its draft with what it waits for in words."""
        kinds = {entry.id: entry.kind for group in self._by_stage.values() for entry in group}
        after = dict.fromkeys(kinds[number.partition("_")[0]] for number in waits.all_of)
        draft = (
            job if isinstance(job, Draft) else Draft(job.kind, job.tasks, settings, job.is_array)
        )
        draft = replace(
            draft,
            after=tuple(after),
            task_by_task=tuple(kinds[number] for number in waits.task_by_task),
            collected=estimate,
        )
        self.drafts.append(draft)
        self._new.append(draft if isinstance(job, Draft) else job)


def _collected_later(stage: Stage) -> Collected | None:
    """The estimate of a stage that collects once others are done; None where it is unknown."""
    if not isinstance(stage, CollectionStage):
        return None
    try:
        plan = stage.collection()
        return collected(plan, stage.place, stage.parts or plan.part_ids())
    except ValueError:  # the policy that drives is missing, whose hash is in the parts' names
        return None


def _is_one_array(needs: Sequence[Sequence[_Awaited]]) -> bool:
    """Whether tasks with these needs can wait together, or each for the task of its number."""
    numbers = {entry.id for needed in needs for entry in needed}
    for number in numbers:
        tasks = [[entry.task for entry in needed if entry.id == number] for needed in needs]
        together = all(wanted == tasks[0] for wanted in tasks)
        if not together and tasks != [[k] for k in range(len(tasks))]:
            return False
    return True


def _awaited(job: jobs.Job, stage: Stage) -> _Awaited:
    """A live job as what a stage waits for."""
    return _Awaited(job.id, job.kind, job.task_of(stage.name), len(job.tasks))


def _waits(stages: Sequence[Sequence[_Awaited]]) -> Waits:
    """What a job waits for.

    Args:
        stages: of each of its tasks, what does the stages that the task needs.
    """
    tasks: dict[str, list[tuple[int, _Awaited]]] = {}
    for k, needed in enumerate(stages):
        for entry in needed:
            tasks.setdefault(entry.id, []).append((k, entry))
    all_of: list[str] = []
    task_by_task: list[str] = []
    for number, pairs in tasks.items():
        wanted = {entry.task for _, entry in pairs}
        same_numbers = [k for k, entry in pairs if entry.task == k] == list(range(len(stages)))
        if len(stages) > 1 and same_numbers and len(pairs) == len(stages):
            task_by_task.append(number)
        elif None in wanted or len(wanted) == pairs[0][1].tasks:
            all_of.append(number)
        else:
            all_of += [f"{number}_{task}" for task in sorted(t for t in wanted if t is not None)]
    return Waits(tuple(sorted(all_of)), tuple(task_by_task))


def _array_share(
    pending: Sequence[Stage], arrays: Sequence[CollectionStage], room: int | None
) -> int:
    """Most tasks of each array of parts, so that the others find room, too; 0 for any number.

    Args:
        pending: the stages without a job; arrays: those that are arrays of parts.
    """
    names = {stage.name for stage in arrays}
    count = sum(stage.name in names for stage in pending)
    if room is None or not count:
        return 0
    reserved = min(len(pending) - count, max(1, room // 2))
    return max(1, (room - reserved) // count)


def _check_needed(stage: Stage, live: Mapping[str, Sequence[_Awaited]]) -> None:
    """Raise ValueError if a stage needs one that no job will do.

    Args:
        live: name of each stage that is not done -> its live jobs.
    """
    for name in stage.after:
        if name in live and not live[name]:
            raise ValueError(f"{stage.name} needs {name}, which is neither done nor in a live job")


def _resources(stage: Stage, settings: SlurmSettings) -> SlurmSettings:
    """Resources of a stage: all for processes of torchrun, else one node and at most one GPU."""
    if not stage.trains:
        return _on_one_node(settings, min(settings.gpus, 0 if stage.device == "cpu" else 1))
    return settings if settings.gpus else _on_cpus(settings)


def _on_one_node(settings: SlurmSettings, gpus: int) -> SlurmSettings:
    sized = replace(settings, nodes=1, gpus=gpus)
    return sized if gpus else _on_cpus(sized)


def _on_cpus(settings: SlurmSettings) -> SlurmSettings:
    """In the partition of what needs no GPU, if there is one."""
    return replace(settings, partition=settings.cpu_partition or settings.partition)


def _check_request(stages: Sequence[Stage], settings: SlurmSettings) -> None:
    """Raise ValueError if a request asks for what none of the stages can use."""
    shared = any(stage.trains for stage in stages)
    if settings.nodes > 1 and not shared:
        raise ValueError("only a learner's training uses several nodes: nodes 1")
    if settings.gpus and not (shared or any(stage.device != "cpu" for stage in stages)):
        raise ValueError(
            "only a training with device=cuda, or a simulator on a GPU, uses GPUs: gpus 0"
        )
    collects = any(isinstance(stage, CollectionStage) for stage in stages)
    if settings.max_parallel and not collects and len(stages) == 1:
        raise ValueError("one job is no array: no --max-parallel")
    if settings.parts_per_task and not collects:
        raise ValueError("nothing is collected: no --parts-per-task")
