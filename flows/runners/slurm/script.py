"""The batch script of a Slurm job: its requests, its work, and how it ends.

Slurm sends USR2 to the script `grace_s` before the time limit (up to a minute earlier, sbatch(1));
the script sends SIGTERM to the work, which saves its state and ends, and requeues the job. torchrun
kills what has not ended 30 s after SIGTERM. Why not submitit: docs/decisions/slurm-scripts.md.
"""

import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from gaitforge.common.trust import trusted

STOPPED = 143
"""Exit code of work that SIGTERM ended: 128 + 15."""

_STRAGGLER_S = 60
"""Seconds until the other nodes are ended once one has."""

_TIME = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")
_NAMES = re.compile(r"[\w.,+-]*")
_MEMORY = re.compile(r"(\d+[KMGT]?)?")
_OPTION = re.compile(r"[a-z][a-z-]*(=[^\s#\"'\\]+)?")
# A job's name is only shown, so what it cannot hold is replaced.
_NOT_JOB = re.compile(r"[^\w.,+-]+")
_WORD = re.compile(r"[^\s#\"'\\\x00-\x1f\x7f]+")
_MAIL = re.compile(r"([^\s#\"'\\,@]+@[^\s#\"'\\,@]+)?")
_CONTAINER = re.compile(r"((apptainer|pyxis):[^\s-].*)?")
# Pyxis splits mounts at the first three, and writes them into a string of a shell.
_NOT_PYXIS = re.compile(r"[\s:,\"$`\\]")
_OURS = frozenset(
    {"array", "chdir", "error", "export", "open-mode", "output", "parsable", "signal", "wrap"}
)


@dataclass(frozen=True)
class SlurmRequest:
    """Resources that a job asks Slurm for, as a form has them.

    Attributes:
        partition: empty for the cluster's default; cpu_partition: of what needs no GPU, empty for
            the same.
        nodes: of one task; gpus: of a node, 0 for none; cpus: of a process.
        memory: of a node, e.g. 8G; empty for the partition's default.
        time: limit of one run: minutes, HH:MM:SS or D-HH:MM:SS.
        max_parallel: parallel tasks of each array; 0 for as many as fit.
        parts_per_task: parts of one task, `cpus` at a time; 0 for as many as `cpus`.
        account, qos: whom Slurm charges, and the quality of service; empty for the user's own.
    """

    partition: str = ""
    cpu_partition: str = ""
    nodes: int = 1
    gpus: int = 0
    cpus: int = 2
    memory: str = ""
    time: str = "01:00:00"
    max_parallel: int = 0
    parts_per_task: int = 0
    account: str = ""
    qos: str = ""

    def __post_init__(self) -> None:
        if self.nodes < 1 or self.cpus < 1:
            raise ValueError(f"{self.nodes} nodes with {self.cpus} cpus: both must be at least 1")
        for name in ("gpus", "max_parallel", "parts_per_task"):
            _check_count(name, getattr(self, name))
        for name in ("partition", "cpu_partition", "account", "qos"):
            if not _NAMES.fullmatch(value := getattr(self, name)):
                raise ValueError(f"'{value}' cannot be the value of {name}")
        if not _MEMORY.fullmatch(self.memory):
            raise ValueError(f"memory needs a number with K, M, G or T, not '{self.memory}'")
        limit_s(self.time)

    @property
    def processes(self) -> int:
        """Processes of a node, one for each GPU."""
        return max(1, self.gpus)


@dataclass(frozen=True)
class SlurmForm(SlurmRequest):
    """Slurm jobs that do a run's work.

    Attributes:
        wait: follow the jobs to their end; else the run ends once they are submitted, and a later
            run with the same values follows them or tells how they ended.
    """

    wait: bool = True


@dataclass(frozen=True)
class SlurmSettings(SlurmRequest):
    """A job's request and all else about it.

    Attributes:
        grace_s: seconds before the limit at which the work gets SIGTERM.
        requeues: maximum per task; None for 3 for parts and 100 for training.
        mail: address that Slurm writes to when the job ends, fails or is queued again.
        setup: shell commands before the work, e.g. "module load cuda"; a failure fails the job.
        env_file: file of NAME=VALUE lines in the shell's syntax, read by the job as it starts.
        container: "apptainer:IMAGE" or "pyxis:IMAGE", in which the work runs; its `python` has
            gaitforge. The folder of the store or run and the present one are mounted.
        after: jobs that must succeed first, as `gaitforge jobs list` takes them: ids, stores, runs.
        options: further options of sbatch, "name=value" or "name".
        pass_env: names of further environment variables for the job; never written to a file.
        dry_run: tell what would be submitted and submit nothing.
        max_tasks: most tasks of an array; 0 for as many as the cluster takes.
    """

    grace_s: int = 120
    requeues: int | None = None
    mail: str = ""
    setup: tuple[str, ...] = ()
    env_file: str = ""
    container: str = ""
    after: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    pass_env: tuple[str, ...] = ()
    dry_run: bool = False
    max_tasks: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("grace_s", "requeues"):
            _check_count(name, getattr(self, name))
        if not _MAIL.fullmatch(self.mail):
            raise ValueError(f"'{self.mail}' is no mail address")
        if not _CONTAINER.fullmatch(self.container):
            raise ValueError(
                f"a container is apptainer:IMAGE or pyxis:IMAGE, not '{self.container}'"
            )
        if limit_s(self.time) <= self.grace_s:
            raise ValueError(
                f"a time limit of {self.time} leaves nothing before the {self.grace_s} s in which "
                "the work has to end; raise --time or lower --grace"
            )
        for option in self.options:
            name = option.split("=")[0]
            # sbatch takes the beginning of an option's name for the option.
            ours = any(taken.startswith(name) for taken in _OURS)
            if not _OPTION.fullmatch(option) or ours:
                raise ValueError(
                    f"sbatch option '{option}' is not allowed: name or name=value, no spaces or "
                    f"quotes, and none of {', '.join(sorted(_OURS))}"
                )


def _check_count(name: str, value: int | None) -> None:
    if value is not None and value < 0:
        raise ValueError(f"{name} must not be negative, got {value}")


def limit_s(time: str) -> int:
    """Seconds of a time limit, sbatch(1): M, M:S, H:M:S, D-H, D-H:M or D-H:M:S.

    Raises:
        ValueError: another form.
    """
    match = _TIME.fullmatch(time)
    if match is None:
        raise ValueError(f"a time limit looks like 90, 01:30:00 or 2-12:00:00, not '{time}'")
    days, *parts = match.groups()
    numbers = [int(number) for number in parts if number is not None]
    if days is not None:
        numbers = [int(days), *numbers, 0, 0][:4]
    elif len(numbers) == 1:
        numbers = [0, 0, *numbers, 0]
    days, hours, minutes, seconds = [0] * (4 - len(numbers)) + numbers
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


@dataclass(frozen=True)
class JobWork:
    """Work of a job.

    Attributes:
        name: of the job; tasks: how many, an array where `array` holds; processes: of one task.
        retry_errors: whether failed work is queued again.
        requeues: maximum per task, unless the settings say otherwise.
    """

    name: str
    tasks: int
    array: bool
    retry_errors: bool
    requeues: int


def batch_script(folder: Path, work: JobWork, settings: SlurmSettings, sha256: str) -> str:
    """The text of a job's script; ValueError if Pyxis cannot mount its folders.

    Args:
        folder: of the job, on a file system that submitter and nodes share.
        sha256: of what plan.json in it says to do; with another one the script does nothing.
    """
    allowed = work.requeues if settings.requeues is None else settings.requeues
    # torchrun ends with 1 whatever its processes ended with.
    stopped = [STOPPED] if _processes(settings) == 1 else [STOPPED, 1]
    return "\n".join(
        [
            "#!/bin/bash",
            "# Written by gaitforge; what it runs is in plan.json beside it.",
            *(_directive(option) for option in _directives(work, settings)),
            "",
            f"folder={shlex.quote(str(folder))}",
            f"max_restarts={allowed}",
            f"retry_errors={'yes' if work.retry_errors else 'no'}",
            f'stop_codes=" {" ".join(map(str, stopped))} "',
            "",
            *_prepare(settings),
            *_start(settings, folder.parent.parent, sha256),
            _BODY,
        ]
    )


def own_lines(script: str) -> tuple[list[str], int]:
    """A script's lines without its end, which all scripts share; and how many lines that has."""
    return script.removesuffix(_BODY).splitlines(), len(_BODY.strip().splitlines())


def _processes(settings: SlurmSettings) -> int:
    return settings.nodes * settings.processes


def _directives(work: JobWork, settings: SlurmSettings) -> list[str]:
    options = [
        f"job-name={_NOT_JOB.sub('-', work.name)}",
        "open-mode=append",
        "requeue",
        f"signal=B:USR2@{settings.grace_s}",
        f"time={settings.time}",
        f"nodes={settings.nodes}",
        "ntasks-per-node=1",
        f"cpus-per-task={settings.cpus * settings.processes}",
    ]
    if work.array:
        at_once = f"%{settings.max_parallel}" if settings.max_parallel else ""
        options.append(f"array=0-{work.tasks - 1}{at_once}")
    if settings.gpus:
        options.append(f"gpus-per-node={settings.gpus}")
    for name in ("partition", "account", "qos"):
        if value := getattr(settings, name):
            options.append(f"{name}={value}")
    if settings.memory:
        options.append(f"mem={settings.memory}")
    if settings.mail:
        options += [f"mail-user={settings.mail}", "mail-type=END,FAIL,REQUEUE"]
    return [*options, *settings.options]


def _directive(option: str) -> str:
    """A line that sbatch reads, of one word; ValueError for what would end the word or the line.

    sbatch takes quotes, backslashes and # in it as a shell does, and the next line is a command.
    """
    if not _WORD.fullmatch(option):
        raise ValueError(f"{option!r} cannot be an option of sbatch in a script")
    return f"#SBATCH --{option}"


def _prepare(settings: SlurmSettings) -> list[str]:
    """The shell function that makes the work's environment."""
    file = f"set -a; . {shlex.quote(settings.env_file)}; local code=$?; set +a; return $code"
    lines = [f"environment() {{ {file}; }}"] if settings.env_file else []
    commands = ["environment"] * bool(settings.env_file) + [*settings.setup]
    steps = [line for command in commands for line in (f"    {{ :; {command}", "    } &&")]
    # What the user's commands call so is another variable.
    variables = "    local folder task job restarts started max_restarts retry_errors stop_codes"
    return [*lines, "prepare() {", variables, *steps, "    true", "}"]


def _start(settings: SlurmSettings, folder: Path, sha256: str) -> list[str]:
    """The shell functions that start and end the work; a container mounts `folder`.

    One process needs no torchrun, which would open a port and hide the exit code. On several nodes
    srun starts a torchrun each; on SIGTERM srun would kill them within seconds, so their step is
    signalled instead. The same holds for a container of Pyxis, which is an option of srun.
    """
    form, _, image = settings.container.partition(":")
    python = "python" if form else shlex.quote(sys.executable)
    srun = "srun"
    inside = ""
    if form == "apptainer":
        cuda = " --nv" if settings.gpus else ""
        quoted = str(folder).replace('"', '""')  # as in CSV; --bind would split at : and ,
        mount = shlex.quote(f'type=bind,"src={quoted}","dst={quoted}"')
        inside = f"apptainer exec{cuda} --mount {mount} {shlex.quote(image)} "
    elif form == "pyxis":
        for path in (folder, Path.cwd()):
            if bad := _NOT_PYXIS.search(str(path)):
                raise ValueError(f"Pyxis cannot mount {path}: rename what has {bad[0]!r} in it")
        mounts = f'{shlex.quote(f"{folder}:{folder}")},"$PWD:$PWD"'
        srun += f" --container-image={shlex.quote(image)} \\\n"
        srun += f'        --container-mounts={mounts} --container-workdir="$PWD"'
        inside = "" if settings.nodes > 1 else f"{srun} --ntasks=1 "
    # What the user trusts is in the script, which is the user's, not in the plan beside it.
    trust = "".join(f" --trust {shlex.quote(text)}" for text in trusted())
    module = f'-m gaitforge jobs run "$folder" --task "$task" --sha256 {sha256}{trust}'
    torchrun = f"{python} -m torch.distributed.run --nproc-per-node={settings.processes}"
    stop = 'kill -TERM "$child" 2>/dev/null'
    if settings.nodes > 1 or form == "pyxis":
        stop = 'persist scancel --signal=TERM "$SLURM_JOB_ID.0"'
    # The image's gaitforge runs, not the submitter's.
    words = ["unset PYTHONPATH"] if form else []
    # `python -m` would import modules of the present folder before those that are installed.
    words.append("export PYTHONSAFEPATH=1")
    if _processes(settings) == 1:
        words += [f"exec {inside}{python} {module}"]
    elif settings.nodes == 1:
        words += [f"exec {inside}{torchrun} --standalone \\", f"    {module}"]
    else:
        words += [
            'local first="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)"',
            'local address="$(scontrol -o show node "$first" | grep -o "NodeAddr=[^ ]*")"',
            'local endpoint="${address#NodeAddr=}:$((20000 + SLURM_JOB_ID % 20000))"',
            f"exec {srun} --wait={_STRAGGLER_S} {inside}{torchrun} --nnodes={settings.nodes} \\",
            '    --rdzv-backend=c10d --rdzv-endpoint="$endpoint" \\',
            '    --rdzv-id="$SLURM_JOB_ID-$restarts" \\',
            f"    {module}",
        ]
    return ["work() {", *(f"    {line}" for line in words), "}", f"stop() {{ {stop}; }}"]


_BODY = r"""
# A busy or restarting controller refuses for a moment; no signal or requeue may be lost by that.
persist() {
    local try
    for try in 1 2 3; do
        "$@" && return
        sleep 3
    done
    return 1
}

job="$SLURM_JOB_ID"
task=0
if [ -n "${SLURM_ARRAY_TASK_ID:-}" ]; then
    task="$SLURM_ARRAY_TASK_ID"
    job="${SLURM_ARRAY_JOB_ID}_$task"
fi
restarts="${SLURM_RESTART_COUNT:-0}"
started="$(date +%s)"
child=""
told=""
why=""
note=""
interrupted=""
again_by="run the same command again"

interrupt() {
    told="$1"
    why="$2"
    interrupted=yes
    echo "gaitforge: $why at $(date '+%F %T'); the work saves and ends"
    # Slurm may kill this script before the work has ended: then this record is the last one.
    code=137
    note="killed while the work was ending, not queued again: $again_by"
    # In a shell that ignores signals: another one's message would be written into the record.
    (trap '' USR2 TERM; record "$task")
    [ -z "$child" ] || stop
}
trap 'interrupt limit "time limit reached"' USR2
trap 'interrupt end cancelled' TERM

record() {
    local new="$folder/exit/.$1.$$"
    {
        printf '{"code": %d, "host": "%s", "restarts": %d,' "$code" "$(hostname)" "$restarts"
        printf ' "started": %d, "ended": %d, "told": "%s",' "$started" "$(date +%s)" "$told"
        printf ' "note": "%s"}\n' "$note"
    } > "$new" && sync "$new" && mv -f "$new" "$folder/exit/$1.json"
}

mkdir -p "$folder/exit" && rm -f "$folder/exit/$task.json"
if ! prepare; then
    trap '' USR2 TERM
    echo "gaitforge: --env-file or --setup failed"
    code=1
    record "$task"
    exit "$code"
fi
work &
child=$!
[ -z "$told" ] || stop

# A trap ends `wait` early; waiting again gives the work's own exit code.
while interrupted=""; wait "$child"; code=$?; [ -n "$interrupted" ]; do :; done

# The work has ended: a signal's message would be written into the record.
trap '' USR2 TERM
note=""
again=no
if [ "$code" -ne 0 ]; then
    case "$told" in
        limit) [[ "$stop_codes" != *" $code "* ]] && again="$retry_errors" || again=yes ;;
        end) note="stopped, not queued again: $again_by" ;;
        *) again="$retry_errors" ;;
    esac
fi
if [ "$again" = yes ] && [ "$restarts" -ge "$max_restarts" ]; then
    note="stopped, not queued again after $restarts requeues: $again_by"
elif [ "$again" = yes ]; then
    # Slurm ends this script once it has queued the task again, so the record comes first.
    record "$task-$restarts"
    rm -f "$folder/exit/$task.json"
    echo "gaitforge: task $task ended with code $code${why:+, $why}; asks Slurm for run" \
        "$((restarts + 1)) of $max_restarts"
    if refusal="$(persist scontrol requeue "$job" 2>&1)"; then
        echo "gaitforge: queued again ($((restarts + 1)) of $max_restarts)"
        exit "$code"
    fi
    rm -f "$folder/exit/$task-$restarts.json"
    # What may stand in a JSON text without further ado.
    refusal="$(printf '%s' "$refusal" | tail -n 1 | tr -cd 'A-Za-z0-9 .,:/_()-' | cut -c 1-120)"
    note="stopped, not queued again (${refusal:-scontrol failed}): $again_by"
fi
record "$task"
[ -z "$note" ] || echo "gaitforge: task $task: $note"
exit "$code"
"""
