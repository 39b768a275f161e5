"""The stream's threads and processes: ended with the iteration, and never forked."""

import gc
import inspect
import multiprocessing
import pydoc
import threading
from dataclasses import fields
from pathlib import Path

import pytest
from torch.utils.data import DataLoader

from gaitforge.datasets import DatasetError, Selection
from gaitforge.datasets.stream.stream_config import StreamConfig
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


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_data_loader_takes_the_stream_and_no_workers(selection: Selection) -> None:
    stream = selection.windows(8, 6)
    loader = DataLoader(stream, batch_size=None)
    assert len(loader) == len(stream)
    assert steps_of(list(loader)) == every_step(selection)
    for start, reason in (("fork", "repeat the whole stream"), ("spawn", "is not copied")):
        loader = DataLoader(stream, batch_size=None, num_workers=1, multiprocessing_context=start)
        with pytest.raises(DatasetError, match=f"{reason}.*num_workers=0"):
            next(iter(loader))


def test_a_stream_and_its_settings_are_shown(selection: Selection) -> None:
    assert repr(selection.windows(8, 6, prefix_len=2, seed=3)) == (
        "WindowStream(obs, action; batches of 6 windows of 2 + 8 steps, of "
        f"{len(selection)} episodes; seed 3, epoch 0)"
    )
    settings = inspect.signature(Selection.windows).parameters
    assert [name for name in settings if name != "self"] == [f.name for f in fields(StreamConfig)]
    assert settings["prefix_len"].default == 0
    assert "accept cut-off episodes" in pydoc.render_doc(Selection.windows)
