"""The stream's threads and processes: ended with the iteration, and never forked."""

import gc
import multiprocessing
import threading
from pathlib import Path

import pytest
from torch.utils.data import DataLoader, IterableDataset

from gaitforge.datasets import DatasetError, Selection
from gaitforge.datasets.stream.window_stream import THREAD_NAME, WindowStream
from tests.datasets.making import small_store
from tests.datasets.streaming import PARTS, every_step, steps_of


def live_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if THREAD_NAME in thread.name]


def test_without_workers_there_are_no_threads(selection: Selection) -> None:
    for _ in selection.windows(4, 1, workers=0):
        assert live_threads() == []


def test_leaving_early_ends_the_threads(selection: Selection) -> None:
    for _ in selection.windows(4, 1, pool_steps=5):
        assert live_threads()
        break
    gc.collect()
    assert live_threads() == []
    stream = selection.windows(4, 1, pool_steps=5)
    iteration = iter(stream)
    next(iteration)
    stream.close()
    assert live_threads() == []
    assert list(iteration) == []


def test_a_second_iteration_waits_for_the_first(
    selection: Selection,
) -> None:
    stream = selection.windows(8, 6)
    first = iter(stream)
    seen = [next(first), next(first)]
    with pytest.raises(DatasetError, match=r"close\(\) the stream"):
        iter(stream)
    seen.append(next(first))
    stream.close()
    assert list(first) == []
    assert steps_of(seen + list(stream)) == every_step(selection)
    again = list(stream)
    assert steps_of(again) == every_step(selection)


def test_errors_of_the_reading_thread_reach_the_consumer(tmp_path: Path) -> None:
    store = small_store(tmp_path / "s", PARTS)
    stream = store.select().windows(8, 2, pool_steps=3)
    iteration = iter(stream)
    next(iteration)
    for path in store.path.glob("parts/*/obs/c/0/0"):
        path.unlink()
    with pytest.raises(DatasetError, match="missing"):
        list(iteration)
    del iteration
    assert live_threads() == []


def _iterate_in_child(stream: WindowStream, answers: multiprocessing.Queue) -> None:
    try:
        next(iter(stream))
        answers.put("read")
    except DatasetError as error:
        answers.put(str(error))


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_reader_is_refused(selection: Selection) -> None:
    stream = selection.windows(8, 6)
    next(iter(stream))
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    child = context.Process(target=_iterate_in_child, args=(stream, answers))
    child.start()
    answer = answers.get(timeout=60)
    child.join(60)
    assert "forked reader is refused" in answer


class _Wrapped(IterableDataset):
    def __init__(self, selection: Selection) -> None:
        self._selection = selection

    def __iter__(self):
        return iter(self._selection.windows(8, 6))


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_data_loader_workers_are_refused_and_none_are_needed(selection: Selection) -> None:
    alone = DataLoader(_Wrapped(selection), batch_size=None)
    assert steps_of(list(alone)) == every_step(selection)
    loader = DataLoader(
        _Wrapped(selection), batch_size=None, num_workers=1, multiprocessing_context="fork"
    )
    with pytest.raises(DatasetError, match="num_workers=0"):
        next(iter(loader))
