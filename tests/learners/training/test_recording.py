"""What a run writes for people: a table and TensorBoard events, without double steps."""

import csv
import time
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from gaitforge.common.history import read_history
from gaitforge.common.run_log import EVENTS
from gaitforge.learners.training.trainer import COLUMNS, TABLE, History, HistoryRow


def row(step: int, validated: bool = False) -> HistoryRow:
    return HistoryRow(step, 1.0 / step, 2.0 / step if validated else None, 1e-3, 100.0, 0.1 * step)


@pytest.fixture
def resumed(tmp_path: Path) -> Path:
    """Six steps, of which the last two were lost and made again."""
    for last_step, steps in ((0, range(1, 7)), (4, range(5, 9))):
        history = History(tmp_path, last_step)
        for step in steps:
            history.append(row(step, validated=step % 2 == 0))
        history.sync()
        history.close()
        time.sleep(1.1)  # files of events are in the order of their seconds
    return tmp_path


def test_the_table_has_every_step_once(resumed: Path) -> None:
    with (resumed / TABLE).open(newline="") as file:
        table = list(csv.DictReader(file))
    assert list(table[0]) == list(COLUMNS)
    assert [int(each["step"]) for each in table] == list(range(1, 9))
    rows = read_history(resumed)
    assert [float(each["loss"]) for each in table] == [each["loss"] for each in rows]
    assert [each["validation_loss"] for each in table[:2]] == ["", "1.0"]


def test_tensorboard_shows_every_step_once(resumed: Path) -> None:
    shown = EventAccumulator(str(resumed / EVENTS)).Reload()
    losses = shown.Scalars("loss/train")
    assert [event.step for event in losses] == list(range(1, 9))
    assert [event.value for event in losses] == pytest.approx([1.0 / n for n in range(1, 9)])
    assert [event.step for event in shown.Scalars("loss/validation")] == [2, 4, 6, 8]
    assert {"optimiser/learning_rate", "speed/control_steps_per_s"} <= set(shown.Tags()["scalars"])


def test_a_line_that_a_crash_cut_short_is_dropped(resumed: Path) -> None:
    path = resumed / "history.jsonl"
    path.write_text(path.read_text()[:-20])
    History(resumed, 8).close()
    assert [each["step"] for each in read_history(resumed)] == list(range(1, 8))
    assert len((resumed / TABLE).read_text().splitlines()) == 8
