"""Several processes train as one: the same batches, the same losses, one set of files."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from gaitforge.common.history import read_history
from gaitforge.datasets import Selection
from gaitforge.learners.checkpoint import load_policy, read_checkpoint
from gaitforge.learners.training.batches import open_stream
from gaitforge.learners.training.config import TrainConfig
from gaitforge.learners.training.distributed import Ranks, process_group
from gaitforge.learners.training.train import split_episodes, train
from gaitforge.learners.training.trainer import HistoryRow
from tests.learners.making import OF_VALUES, SHORT, make_selection

CONFIG = replace(SHORT, objective="gaussian-bc", steps=30, ema_decay=0.9, threads=None)
SET_BY_TORCHRUN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@pytest.fixture(scope="module")
def selection(tmp_path_factory: pytest.TempPathFactory) -> Selection:
    return make_selection(tmp_path_factory.mktemp("store") / "walks.zarr", episodes=40)


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SET_BY_TORCHRUN:
        monkeypatch.delenv(name, raising=False)


def training_command(config: TrainConfig, selection: Selection, run_dir: Path) -> list[str]:
    """What follows `python` to train by the command line."""
    command = ["-m", "gaitforge", "train", str(selection.store.path), "--out", str(run_dir)]
    command += ["--json", "--objective", config.objective]
    chosen, usual = (
        config.to_json(),
        TrainConfig.recommended(config.model, objective=config.objective).to_json(),
    )
    for name, value in chosen.items():
        if value != usual[name]:
            command += ["--set", f"config.{name}={json.dumps(value)}"]
    return command


def environment(**variables: Any) -> dict[str, str]:
    """Loopback only, one thread, and whatever torchrun would set."""
    fixed = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    return os.environ | fixed | {name: str(value) for name, value in variables.items()}


@pytest.mark.parametrize(("world_size", "batch_size"), [(2, 12), (3, 24), (4, 12)])
def test_ranks_share_the_batches(world_size: int, batch_size: int, selection: Selection) -> None:
    config = replace(CONFIG, batch_size=batch_size).settled(None)
    for episodes in range(20, 40, 2):
        some = selection.where(f"episode < {episodes}")
        whole = open_stream(config, some, Ranks(), seed=4)
        shares = [
            open_stream(config, some, Ranks(rank, world_size), seed=4) for rank in range(world_size)
        ]
        for batch, *parts in zip(whole, *shares, strict=True):
            for rank, part in enumerate(parts):
                assert torch.equal(part["obs"], batch["obs"][rank::world_size])
                assert torch.equal(part["mask"], batch["mask"][rank::world_size])
        assert len({each.state_dict()["epoch"] for each in (whole, *shares)}) == 1


@pytest.mark.slow
@pytest.mark.long
def test_two_processes_go_on_where_one_stopped_and_end_alike(
    selection: Selection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    objective = OF_VALUES[-1] if OF_VALUES else "bc"  # a policy and critics
    suited = TrainConfig.recommended(objective=objective)
    names = ("optimiser", "peak_lr", "warmup_fraction", "schedule", "weight_decay")
    own = {name: getattr(suited, name) for name in (*names, "betas", "eps", "grad_clip")}
    config = replace(CONFIG, objective=objective, **own)

    class Killed(Exception):
        pass

    def kill(done: int, total: int, information: HistoryRow) -> None:
        if done == 9:
            raise Killed

    monkeypatch.setattr("gaitforge.learners.training.trainer.PROGRESS_PERIOD_S", 0.0)
    whole = train(config, selection, tmp_path / "one")
    with pytest.raises(Killed):
        train(config, selection, tmp_path / "two", progress=kill)
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [sys.executable, *torchrun, *training_command(config, selection, tmp_path / "two")]
    finished = subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=240, check=False
    )
    assert finished.returncode == 0, finished.stderr
    result = json.loads(finished.stdout)  # and not twice
    assert result["resumed_from"] == 7
    assert result["control_steps"] == whole.control_steps
    rows, expected = (read_history(tmp_path / name) for name in ("two", "one"))
    assert [row["step"] for row in rows] == [row["step"] for row in expected]
    for name in ("loss", "validation_loss"):
        values = [[row[name] for row in each if row[name] is not None] for each in (rows, expected)]
        assert values[0] == pytest.approx(values[1], rel=1e-5)
    found = load_policy(tmp_path / "two").state_dict()
    for name, value in load_policy(tmp_path / "one").state_dict().items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-5)
    assert read_checkpoint(tmp_path / "two")[1]["finished"]


def start(commands: Sequence[str], world_size: int, stderr: Path) -> list[subprocess.Popen[bytes]]:
    """One process per rank, as torchrun would start them; each writes to a file of its own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    running = []
    for rank in range(world_size):
        variables: dict[str, Any] = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world_size}
        variables |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        with (stderr / f"stderr-{rank}").open("wb") as file:
            running.append(
                subprocess.Popen(
                    [sys.executable, *commands],
                    env=environment(**variables),
                    stdout=subprocess.DEVNULL,
                    stderr=file,
                )
            )
    return running


@pytest.mark.slow
def test_a_signal_to_any_process_stops_all(selection: Selection, tmp_path: Path) -> None:
    world_size, number = 2, signal.SIGUSR2
    # One episode held out: fewer than there are processes to validate.
    config = replace(CONFIG, steps=10**6, checkpoint_every=10**6, validation_every=2)
    config = replace(config, held_out_fraction=0.02)
    assert len(split_episodes(config, selection).held_out or ()) == 1
    run_dir = tmp_path / "run"
    running = start(training_command(config, selection, run_dir), world_size, tmp_path)
    try:
        deadline = time.monotonic() + 120
        while len(read_history(run_dir)) < 3 and time.monotonic() < deadline:
            assert all(each.poll() is None for each in running)
            time.sleep(0.05)
        running[-1].send_signal(number)
        assert [each.wait(60) for each in running] == [143] * world_size
    finally:
        for each in running:
            each.kill()
    step = read_checkpoint(run_dir)[1]["progress"]["step"]
    said = [(tmp_path / f"stderr-{rank}").read_text() for rank in range(world_size)]
    line = f"gaitforge: stopped by {number.name} after step {step}; run the same command again"
    assert line in said[0].splitlines()[-1]
    assert not any(said[1:])
    assert [row["step"] for row in read_history(run_dir)] == list(range(1, step + 1))


def test_a_batch_that_does_not_divide_is_refused() -> None:
    assert Ranks(1, 4).share(64) == 16
    with pytest.raises(ValueError, match="batch_size must be a multiple of the 4 processes"):
        Ranks(1, 4).share(62)


def test_one_process_has_the_whole_batch_and_no_group() -> None:
    with process_group("cpu") as ranks:
        assert ranks == Ranks()
        assert ranks.rank == 0
        assert ranks.largest(3) == 3
        assert not torch.distributed.is_initialized()


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"WORLD_SIZE": "2"}, "RANK is not set; start with torchrun"),
        ({"WORLD_SIZE": "2", "RANK": "0"}, "MASTER_ADDR is not set"),
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE must be a number, got 'two'"),
    ],
)
def test_variables_that_make_no_sense_are_refused(
    variables: dict[str, str],
    message: str,
    selection: Selection,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=message):
        train(CONFIG, selection, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_refused(selection: Selection, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"device cuda was asked for, but .*use device=cpu"):
        train(replace(CONFIG, device="cuda"), selection, tmp_path)
