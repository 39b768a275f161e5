"""The history file that every training writes."""

from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gaitforge.common.history import HISTORY, HistoryFile, read_history


@pytest.mark.slow
@given(
    stops=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 9)), max_size=5)
)
def test_stops_leave_every_step_once_up_to_the_last(
    tmp_path_factory: pytest.TempPathFactory, stops: list[tuple[int, int, int]]
) -> None:
    """Each start goes on from a checkpoint, adds rows, and is killed while it writes one."""
    folder, saved = tmp_path_factory.mktemp("history"), 0
    for kept, lost, torn in [*stops, (1, 0, 0)]:
        with closing(HistoryFile(folder, "steps", saved)) as history:
            for step in range(saved + 1, saved + kept + lost + 1):
                history.append({"steps": step, "from": saved})
        with (folder / HISTORY).open("a") as file:
            file.write('{"steps": 1}'[:torn])
        saved += kept
    rows = read_history(folder)
    assert [row["steps"] for row in rows] == list(range(1, saved + 1))
    assert all(row["steps"] > row["from"] for row in rows)


def test_repeats_of_earlier_versions_are_cut_too(tmp_path: Path) -> None:
    lines = [f'{{"steps": {step}, "loss": {loss}}}\n' for step, loss in [(1, 0), (2, 1), (2, 2)]]
    (tmp_path / HISTORY).write_text("".join(lines))
    HistoryFile(tmp_path, "steps", 2).close()
    assert read_history(tmp_path) == [{"steps": 1, "loss": 0}, {"steps": 2, "loss": 2}]


def test_a_history_of_another_kind_of_training_is_refused_and_stays(tmp_path: Path) -> None:
    (tmp_path / HISTORY).write_text('{"step": 1}\n')
    with pytest.raises(ValueError, match="is of another kind of training; choose another folder"):
        HistoryFile(tmp_path, "steps", 0)
    assert read_history(tmp_path) == [{"step": 1}]
