"""A run that was stopped, by whatever, ends as one that was not."""

import math
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from gaitforge.common.history import read_history
from gaitforge.common.interrupts import INTERRUPTED, STOPPED, Stopped, stop_signals
from gaitforge.datasets import Selection
from gaitforge.flows.stages.status import training_status
from gaitforge.learners.checkpoint import BEST, load_policy, read_checkpoint
from gaitforge.learners.training.batches import open_stream
from gaitforge.learners.training.config import TrainConfig
from gaitforge.learners.training.distributed import Ranks
from gaitforge.learners.training.train import TrainResult, train
from gaitforge.learners.training.trainer import HistoryRow, Progress
from tests.learners.making import OBS_SLICES, OF_VALUES, SHORT, SMALL, make_selection

LONGER = replace(SHORT, steps=32)
STOP = 11
REMEMBERING = replace(LONGER, model="bot", model_overrides=SMALL["bot"] | {"history": 3})
DROPPING = replace(
    LONGER,
    model="transformer-published",
    model_overrides={"hidden_dim": 16, "n_heads": 2, "n_layers": 2, "context_len": 4},
)


@pytest.fixture(scope="module")
def selection(tmp_path_factory: pytest.TempPathFactory) -> Selection:
    return make_selection(tmp_path_factory.mktemp("store") / "walks.zarr")


@pytest.fixture(scope="module")
def whole(selection: Selection, tmp_path_factory: pytest.TempPathFactory) -> TrainResult:
    """The short run, without a stop."""
    return train(LONGER, selection, tmp_path_factory.mktemp("whole"))


@pytest.fixture(autouse=True)
def _report_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gaitforge.learners.training.trainer.PROGRESS_PERIOD_S", 0.0)


class Killed(Exception):
    """Stands for a crash."""


def after(step: int, action: Callable[[], None]) -> Progress:
    """A progress callback that acts once some steps are done."""

    def progress(done: int, total: int, information: HistoryRow) -> None:
        if done >= step:
            action()

    return progress


def ctrl_c() -> None:
    signal.raise_signal(signal.SIGINT)


def crash() -> None:
    raise Killed


def numbers(run_dir: Path) -> list[tuple[Any, ...]]:
    """The history without its clock."""
    return [
        (row["step"], row["loss"], row["validation_loss"], row["lr"])
        for row in read_history(run_dir)
    ]


def stop_and_go_on(
    config: TrainConfig, selection: Selection, run_dir: Path, step: int = STOP
) -> Path:
    with pytest.raises(KeyboardInterrupt):
        train(config, selection, run_dir, progress=after(step, ctrl_c))
    assert read_checkpoint(run_dir)[1]["progress"]["step"] == step
    assert train(config, selection, run_dir).resumed_from == step
    seconds = [row["elapsed_s"] for row in read_history(run_dir)]
    assert all(later > earlier for earlier, later in pairwise(seconds))
    return run_dir


def assert_same_run(found: Path, expected: Path) -> None:
    """Equal histories, weights, optimisers, averages, positions and best policies, bit for bit."""
    assert numbers(found) == numbers(expected)
    for which in ("last", "best"):
        tensors, card = read_checkpoint(expected, which)
        found_tensors, found_card = read_checkpoint(found, which)
        assert tensors.keys() == found_tensors.keys()
        assert all(torch.equal(tensors[name], found_tensors[name]) for name in tensors)
        assert found_card["stream"] == card["stream"]
        for name in ("step", "control_steps", "best_step", "best_validation_loss"):
            assert found_card["progress"][name] == card["progress"][name]


@pytest.mark.parametrize(
    "config",
    [
        replace(LONGER, objective="return", condition=("rate",), condition_hidden=0.3),
        replace(REMEMBERING, objective="return", last_action_hidden=0.3, history_hidden=0.3),
        replace(LONGER, objective="gaussian-bc", optimiser="lion", peak_lr=3e-4),
        replace(LONGER, ema_decay=0.9, optimiser="adam", schedule="constant", accumulate=3),
        replace(REMEMBERING, window_len=1, batch_size=13),
        replace(DROPPING, ema_decay=0.9, accumulate=2),
    ],
    ids=["labels-hidden", "history-hidden", "gaussian-lion", "ema-adam", "bot", "dropout"],
)
def test_an_interrupted_run(config: TrainConfig, selection: Selection, tmp_path: Path) -> None:
    uninterrupted = train(config, selection, tmp_path / "whole")
    stopped = stop_and_go_on(config, selection, tmp_path / "stopped")
    assert_same_run(stopped, uninterrupted.run_dir)


def test_a_run_keeps_its_prefix() -> None:
    mine = REMEMBERING.settled(None)
    assert mine.prefix_len == 2
    assert REMEMBERING.settled({**mine.to_json(), "prefix_len": 5}).prefix_len == 5
    other = replace(REMEMBERING, prefix_len=1)
    assert other.settled(mine.to_json()).differences(mine.to_json()) == ["prefix_len"]


def test_stops_within_an_epoch(whole: TrainResult, selection: Selection, tmp_path: Path) -> None:
    rest, _ = selection.split(LONGER.held_out_fraction, LONGER.seed)
    epoch = len(open_stream(LONGER.settled(None), rest, Ranks(), LONGER.seed))
    assert 1 < epoch < LONGER.steps - 20
    for step in (1, epoch, epoch + 1):
        with pytest.raises(KeyboardInterrupt):
            train(LONGER, selection, tmp_path / str(step), progress=after(step, ctrl_c))
        position = read_checkpoint(tmp_path / str(step))[1]["stream"]
        assert position["epoch"] == step // epoch
        assert (position["cursor"] == 0) == (step == epoch)
        assert train(LONGER, selection, tmp_path / str(step)).resumed_from == step
        assert_same_run(tmp_path / str(step), whole.run_dir)


def test_a_killed_run_goes_on(whole: TrainResult, selection: Selection, tmp_path: Path) -> None:
    with pytest.raises(Killed):
        train(LONGER, selection, tmp_path, progress=after(10, crash))
    assert len(read_history(tmp_path)) == 10
    assert train(LONGER, selection, tmp_path).resumed_from == 7
    assert_same_run(tmp_path, whole.run_dir)


@pytest.mark.parametrize(
    ("number", "exit_code"), [(signal.SIGINT, INTERRUPTED), (signal.SIGUSR2, STOPPED)]
)
def test_signals_leave_a_checkpoint_after_the_step(
    number: signal.Signals,
    exit_code: int,
    whole: TrainResult,
    selection: Selection,
    tmp_path: Path,
) -> None:
    before = signal.getsignal(number)
    with pytest.raises(Stopped) as caught:
        train(LONGER, selection, tmp_path, progress=after(5, lambda: signal.raise_signal(number)))
    assert str(caught.value) == f"stopped by {number.name} after step 5"
    assert training_status(tmp_path).state == "stopped", "at once"
    assert caught.value.exit_code == exit_code
    assert signal.getsignal(number) is before
    assert train(LONGER, selection, tmp_path).resumed_from == 5
    assert_same_run(tmp_path, whole.run_dir)


def test_a_signal_during_the_last_save_is_not_lost(
    selection: Selection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = signal.SIGTERM
    monkeypatch.setattr("gaitforge.learners.training.trainer.PROGRESS_PERIOD_S", math.inf)
    before = signal.getsignal(number)
    # The only report comes once all is saved.
    with pytest.raises(Stopped) as caught:
        train(LONGER, selection, tmp_path, progress=after(1, lambda: signal.raise_signal(number)))
    assert read_checkpoint(tmp_path).card["finished"]
    assert (caught.value.signal, caught.value.exit_code) == (number, STOPPED)
    assert signal.getsignal(number) is before
    assert train(LONGER, selection, tmp_path).resumed_from == LONGER.steps


def test_an_error_is_not_hidden_by_a_signal() -> None:
    with pytest.raises(Killed), stop_signals():
        crash_after_a_signal()


def crash_after_a_signal() -> None:
    signal.raise_signal(signal.SIGTERM)
    raise Killed


def test_a_finished_run_returns_at_once(whole: TrainResult, selection: Selection) -> None:
    files = {path: path.stat().st_mtime_ns for path in whole.run_dir.rglob("*")}
    assert train(LONGER, selection, whole.run_dir) == replace(whole, resumed_from=LONGER.steps)
    assert {path: path.stat().st_mtime_ns for path in whole.run_dir.rglob("*")} == files


def test_the_callers_random_numbers_stay(selection: Selection, tmp_path: Path) -> None:
    torch.manual_seed(4)
    expected = torch.rand(3)
    torch.manual_seed(4)
    train(replace(LONGER, steps=2), selection, tmp_path)
    assert torch.equal(torch.rand(3), expected)


def test_the_best_policy_has_the_lowest_loss(selection: Selection, tmp_path: Path) -> None:
    config = replace(
        LONGER, peak_lr=0.1, schedule="constant", warmup_fraction=0.0, validation_every=1
    )
    result = train(config, selection, tmp_path)
    losses = {row["step"]: row["validation_loss"] for row in read_history(tmp_path)}
    assert result.best_step == min(losses, key=lambda step: losses[step])
    assert result.best_validation_loss == min(losses.values()) < losses[config.steps]
    card = read_checkpoint(tmp_path, "best")[1]
    assert card["progress"]["step"] == result.best_step
    best = load_policy(tmp_path, obs_slices=OBS_SLICES, which="best")
    shorter = train(replace(config, steps=result.best_step or 0), selection, tmp_path / "shorter")
    last = load_policy(shorter.run_dir).state_dict()
    assert all(torch.equal(value, last[name]) for name, value in best.state_dict().items())


def test_without_held_out_episodes_there_is_no_best(selection: Selection, tmp_path: Path) -> None:
    result = train(replace(LONGER, steps=3, held_out_fraction=0.0), selection, tmp_path)
    assert result.validation_loss is result.best_step is None
    assert not (tmp_path / BEST).exists()
    with pytest.raises(ValueError, match="no best checkpoint in"):
        load_policy(tmp_path, which="best")
    with pytest.raises(ValueError, match="allowed: last, best"):
        load_policy(tmp_path, which="first")


def test_how_it_runs_may_change(whole: TrainResult, selection: Selection, tmp_path: Path) -> None:
    with pytest.raises(Killed):
        train(LONGER, selection, tmp_path, progress=after(STOP, crash))
    other = replace(LONGER, accumulate=2, checkpoint_every=100)
    assert train(other, selection, tmp_path).resumed_from == 7
    found, expected = numbers(tmp_path), numbers(whole.run_dir)
    assert [row[1] for row in found] == pytest.approx([row[1] for row in expected], rel=1e-4)


def told_of_other_numbers(config: TrainConfig, selection: Selection, run: Path) -> bool:
    """Whether a run that goes on with smaller parts of a batch says that its numbers are others."""
    said = list[str]()
    with pytest.raises(Killed):
        train(config, selection, run, progress=after(STOP, crash))
    train(replace(config, accumulate=2), selection, run, say=said.append)
    others = [line for line in said if line.startswith("accumulate is another than before")]
    return len(others) == 1


def test_other_random_numbers_than_before_are_said(selection: Selection, tmp_path: Path) -> None:
    """Where the loss draws some, the parts of a batch and the device decide which."""
    configs = {"fcnet": LONGER, "dropout": DROPPING}
    configs |= {name: replace(LONGER, objective=name) for name in OF_VALUES}
    for name, config in configs.items():
        told = told_of_other_numbers(config, selection, tmp_path / name)
        assert told == (name in ("dropout", "td3-bc")), name


LOST = """
class Dying:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)
def lose():
    Dying()
    print("went on", flush=True)
"""
REPLACED = """
def lose():
    try:
        os.kill(os.getpid(), signal.SIGTERM)
    except BaseException as error:
        print("went on", flush=True)
        raise ImportError("initialization failed") from error
"""


@pytest.mark.parametrize("lose", [LOST, REPLACED], ids=["a destructor", "a module in C"])
def test_an_interrupt_that_was_lost_or_replaced_is_raised_at_the_end(lose: str) -> None:
    program = (
        "import os, signal\n"
        "from gaitforge.common.interrupts import stop_signals\n"
        f"{lose}"
        "with stop_signals(signal.SIGTERM, error=lambda _: SystemExit(143)):\n"
        "    lose()\n"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("went on\n", 143)
