"""Where a training's curves go beside its history: TensorBoard's files, and services.

    [project.entry-points."gaitforge.loggers"]
    wandb = "gaitforge.plugins.loggers.entries:WANDB"

`--log NAME,NAME` names loggers: those of installed packages, or "module:Class" of the user's own.
`logging_to` says it for a block of code, and a training in it opens its `RunLog`. No plan, record
or checkpoint names a logger: a training that resumes logs to what its command line says then.
`loggers.json` in its folder has an id, by which a service knows the run again.

A logger has a thread of its own, so that a slow service holds up no update. One that fails while
the training goes on is left out from there, with a warning. `TensorBoardLogger` is the core's own.
"""

import json
import re
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any, Literal, Protocol, cast

from gaitforge.common.errors import first_line, missing_package, names_allowed
from gaitforge.common.extensions import Registered, named_extension, own_function
from gaitforge.common.files import write_bytes_durably
from gaitforge.common.interrupts import Stopped
from gaitforge.common.redaction import MASK, is_secret_name, redacted

TENSORBOARD = "tensorboard"
NONE = "none"
"""Name that stands for no logger."""
RUN_RECORD = "loggers.json"
_ID = re.compile(r"[0-9a-z]{21}")
_END_S = 60.0
"""Seconds that a logger has for what is left once the training has ended."""
_LONG = re.compile(r"[\w+=-]{32,}")
"""What may be a key in a service's error."""
_METHODS = ("log", "add_file", "finish")

State = Literal["finished", "stopped", "failed"]
"""How a training ended: it is done, a signal stopped it, or an error."""


@dataclass(frozen=True)
class LoggedRun:
    """A training, or an experiment's page, as a logger gets it.

    Attributes:
        folder: with its files; a logger may write into a folder of its name there.
        name, group: its own name, and that of its experiment, "" without one.
        id: 21 lower-case letters and digits, the same whenever the training resumes.
        config: its settings as JSON values, without secrets.
        last_step: of the checkpoint that it resumes from; 0 without one.
    """

    folder: Path
    name: str
    group: str
    id: str
    config: Mapping[str, Any]
    last_step: int


class Logger(Protocol):
    """What keeps the curves and files of one training; its class is called with a `LoggedRun`.

    The class and the methods are called in one thread, which is not the training's. What the class
    raises refuses a training that is new; what a method raises ends the log with a warning.
    """

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Keep the values of a step, such as {"loss/train": 0.1}.

        A training that was killed repeats the steps after its last checkpoint.
        """

    def add_file(self, path: Path) -> None:
        """Keep a file of the training."""

    def finish(self, state: State) -> None:
        """End the log; nothing comes after it."""


@dataclass(frozen=True)
class LoggerEntry:
    """An entry of the group `gaitforge.loggers`, in a module that is quick to import.

    Attributes:
        logger: "module:Class" of the `Logger`.
        package: that the class imports, if it may be missing.
        extra: of gaitforge that brings it; "" of other packages, which pip knows by `package`.
    """

    logger: str
    package: str = ""
    extra: str = ""

    def check(self, name: str) -> None:
        """Raise ValueError, with the command that installs it, if the package is missing."""
        if not self.package:
            return
        spec = find_spec(self.package)
        if spec is None or spec.origin is None:  # a folder of that name is no package
            raise ValueError(self._missing(name))

    def _missing(self, name: str) -> str:
        if self.extra:
            return missing_package(f"--log {name}", self.package, self.extra)
        command = f"{sys.executable} -m pip install {self.package}"
        return f"--log {name} needs {self.package}, which is not installed: run {command}"


LOGGERS = Registered(
    "logger",
    LoggerEntry,
    {
        TENSORBOARD: LoggerEntry(
            "gaitforge.common.run_log:TensorBoardLogger", "tensorboard", "learn"
        )
    },
)
"""Name -> what `--log NAME` uses."""


def check_loggers(names: Sequence[str]) -> None:
    """Raise ValueError, in one line, for loggers that do not exist or lack their package.

    Raises:
        UntrustedCodeError: a "module:Class" that the user's command line does not name.
    """
    if NONE in names and len(names) > 1:
        raise ValueError(f"--log {NONE} goes with no other logger, got {','.join(names)}")
    for name in names:
        if name != NONE:
            _logger_class(name)


def _logger_class(name: str) -> Callable[[LoggedRun], Logger]:
    if ":" not in name:
        if name not in LOGGERS:
            choices = names_allowed(name, [*LOGGERS, NONE], "module:Class")
            raise ValueError(f"unknown logger '{name}'; {choices}")
        entry = LOGGERS[name]
        entry.check(name)
        return cast(Callable[[LoggedRun], Logger], own_function(entry.logger, "logger"))
    kind = named_extension("logger", name).load()
    if not callable(kind) or not all(callable(getattr(kind, part, None)) for part in _METHODS):
        raise ValueError(f"{name} is no logger: it needs a class with {', '.join(_METHODS)}")
    return cast(Callable[[LoggedRun], Logger], kind)


# What a command line asks for.
@dataclass(frozen=True)
class _Asked:
    names: tuple[str, ...]
    group: str


_ASKED: ContextVar[_Asked | None] = ContextVar("loggers", default=None)


@contextmanager
def logging_to(names: Sequence[str], group: str = "") -> Iterator[None]:
    """Trainings in the block log to these; `group` names their experiment."""
    token = _ASKED.set(_Asked(tuple(names), group))
    try:
        yield
    finally:
        _ASKED.reset(token)


# The log of a training.
class RunLog:
    """The loggers of a training that runs now.

    Args:
        folder, config, last_step: see `LoggedRun`.
        default: the loggers where nothing was asked for; left_out: of those, never these.
        strict: refuse what a logger cannot begin; else it is left out with a warning. By default a
            training that is new is strict: one that resumes may meet a service that is down.

    Raises:
        ValueError: a logger cannot begin.
    """

    def __init__(
        self,
        folder: Path,
        config: Mapping[str, Any],
        last_step: int = 0,
        default: Sequence[str] = (),
        left_out: Sequence[str] = (),
        strict: bool | None = None,
    ) -> None:
        asked = _ASKED.get() or _Asked(tuple(default), "")
        names = [name for name in dict.fromkeys(asked.names) if name not in (NONE, *left_out)]
        self._senders: list[_Sender] = []
        strict = last_step == 0 if strict is None else strict
        if not names:
            return
        run_id = _run_id(folder) if set(names) - {TENSORBOARD} else ""
        settings = _without_secrets(config)
        name = folder.absolute().name
        run = LoggedRun(folder, name, asked.group, run_id, settings, last_step)
        for name in names:
            make = partial(_logger_class(name), run)
            with redirect_stdout(sys.stderr):  # services greet, and a command's output may be JSON
                sender = _Sender(name, make)
                error = sender.begun()
            if error is None:
                self._senders.append(sender)
            elif strict:
                self.finish("failed")
                raise ValueError(f"--log {name}: {_reason(error)}")
            else:
                _warn(name, error)

    def log(self, step: int, values: Mapping[str, Any]) -> None:
        """Log the numbers among the values of a step; those of a mapping inside as NAME/INNER."""
        if self._senders:
            numbers = dict(_numbers(values))
            for sender in self._senders:
                sender.send("log", step, numbers)

    def finish(self, state: State, files: Iterable[Path] = ()) -> None:
        """Add the files that exist, and end the log; takes a minute at most for each logger."""
        present = [path for path in files if path.is_file()]
        with redirect_stdout(sys.stderr) if self._senders else nullcontext():
            for sender in self._senders:
                for path in present:
                    sender.send("add_file", path)
                sender.send("finish", state)
            for sender in self._senders:
                sender.wait()
        self._senders = []


@contextmanager
def logged_training(
    folder: Path, config: Mapping[str, Any], last_step: int, files: Sequence[str]
) -> Iterator[RunLog]:
    """The `RunLog` of a training for the time of the block, which ends with files of its folder."""
    log = RunLog(folder, config, last_step)
    state: State = "failed"
    try:
        yield log
        state = "finished"
    except Stopped:
        state = "stopped"
        raise
    finally:
        log.finish(state, [folder / name for name in files])


class _Sender:
    """A logger in a thread of its own."""

    def __init__(self, name: str, make: Callable[[], Logger]) -> None:
        self._name = name
        self._make = make
        self._begun: SimpleQueue[BaseException | None] = SimpleQueue()
        self._calls: SimpleQueue[tuple[str, tuple[Any, ...]] | None] = SimpleQueue()
        self._thread = Thread(target=self._work, name=f"log {name}", daemon=True)
        self._thread.start()

    def begun(self) -> BaseException | None:
        """Wait until the logger is there; what it raised instead."""
        return self._begun.get()

    def send(self, method: str, *arguments: object) -> None:
        """Call a method of the logger, soon."""
        self._calls.put((method, arguments))

    def wait(self) -> None:
        """Wait until all calls are done, or for too long."""
        self._calls.put(None)
        self._thread.join(_END_S)
        if self._thread.is_alive():
            _warn(self._name, TimeoutError(f"it does not end within {_END_S:.0f} s"))

    def _work(self) -> None:
        try:
            logger = self._make()
        except BaseException as error:  # a service may want to end the process
            self._begun.put(error)
            return
        self._begun.put(None)
        works = True
        while (call := self._calls.get()) is not None:
            method, arguments = call
            if not works:
                continue
            try:
                getattr(logger, method)(*arguments)
            except Exception as error:
                works = False
                _warn(self._name, error)
                if method != "finish":
                    with suppress(Exception):
                        logger.finish("failed")


def _warn(name: str, error: BaseException) -> None:
    text = f"warning: --log {name}: {_reason(error)}; nothing more goes there"
    print(f"{text}, and the training's own files have everything", file=sys.stderr, flush=True)


def _reason(error: BaseException) -> str:
    """An error in one line, without what may be a key."""
    line = first_line(error)
    text = line if isinstance(error, ValueError) else f"{type(error).__name__}: {line}"
    return _LONG.sub(MASK, redacted(text))


def _numbers(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{prefix}{name}/")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield f"{prefix}{name}", value


def _without_secrets(value: Any) -> Any:
    """A value as JSON has it, without secrets."""
    if isinstance(value, Mapping):
        return {
            str(name): MASK if is_secret_name(str(name)) else _without_secrets(inner)
            for name, inner in value.items()
        }
    if isinstance(value, list | tuple):
        return [_without_secrets(inner) for inner in value]
    if value is None or isinstance(value, bool | int | float):
        return value
    return redacted(str(value))


def _run_id(folder: Path) -> str:
    """The run's id of a training's folder, kept there; ValueError for a damaged record."""
    path = folder / RUN_RECORD
    if path.is_file():
        with suppress(ValueError, TypeError, KeyError):
            run_id = json.loads(path.read_text())["id"]
            if _ID.fullmatch(run_id):
                return run_id
        raise ValueError(f"{path} is damaged: remove it, and services get a new run")
    run_id = uuid.uuid4().hex[:21]
    write_bytes_durably(path, (json.dumps({"id": run_id}) + "\n").encode())
    return run_id


# The core's own logger.
EVENTS = "tensorboard"
"""Folder of TensorBoard's files, in that of the training."""


class TensorBoardLogger:
    """A `Logger` that writes a file for each start, which hides later steps of earlier ones."""

    def __init__(self, run: LoggedRun) -> None:
        from torch.utils.tensorboard import SummaryWriter  # slow to import

        purge = run.last_step + 1 if run.last_step else None
        self._events = SummaryWriter(str(run.folder / EVENTS), purge_step=purge)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """See `Logger.log`."""
        for name, value in values.items():
            self._events.add_scalar(name, value, step)

    def add_file(self, path: Path) -> None:
        """See `Logger.add_file`; the file lies beside TensorBoard's already."""

    def finish(self, state: State) -> None:
        """See `Logger.finish`."""
        self._events.close()
