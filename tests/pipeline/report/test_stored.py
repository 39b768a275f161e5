"""Films of stored episodes: the episode itself, in every format, or one clear line."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from datasets import Selection, open_store
from flows.progress import Silent
from flows.stages.collect import collect
from pipeline.report.stored import replayed, write_video
from tests.flows.making import COLLECT
from tests.pipeline.report.test_pictures import draw_blocks


@pytest.fixture(scope="module")
def selection(tmp_path_factory: pytest.TempPathFactory) -> Selection:
    path = tmp_path_factory.mktemp("video") / "legged.zarr"
    collect(COLLECT, path, Silent())
    return open_store(path).select()


@pytest.fixture(autouse=True)
def drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.report.stored.draw", draw_blocks)


def test_the_film_shows_the_stored_episode_at_25_frames_a_second(
    selection: Selection, tmp_path: Path
) -> None:
    lengths = selection.episodes().column("length").to_pylist()
    noisy = selection.episodes().column("action_noise").to_pylist().index(0.5)
    (result,), _ = replayed(selection, [noisy])
    assert result.record is not None
    np.testing.assert_array_equal(result.record.reward, selection.episode(noisy)["reward"])
    write_video(selection, noisy, tmp_path / "new" / "film.webp", size_px=(80, 50))
    with Image.open(tmp_path / "new" / "film.webp") as film:
        assert film.size == (80, 80)
        assert getattr(film, "n_frames", 1) == -(-lengths[noisy] // 2)


def test_mp4_has_all_frames(selection: Selection, tmp_path: Path) -> None:
    av = pytest.importorskip("av", reason="the extra video is not installed")
    write_video(selection, 0, tmp_path / "film.mp4", size_px=(80, 50))
    with av.open(str(tmp_path / "film.mp4")) as film:
        frames = len(list(film.decode(video=0)))
    assert frames == -(-selection.episodes().column("length")[0].as_py() // 2)


def test_what_cannot_be_filmed_is_one_clear_line(
    selection: Selection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    for index, name, size_px, said in (
        (0, "film.avi", (80, 50), "allowed: webp, gif, mp4"),
        (0, "film.webp", (81, 50), "two even numbers"),
        (10_000, "film.webp", (80, 50), "no episode 10000 in a selection of"),
        (0, "film.mp4", (80, 50), r"pip install 'gaitforge\[video\]'"),
    ):
        with pytest.raises(ValueError, match=said) as caught:
            write_video(selection, index, tmp_path / name, size_px)
        assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []
