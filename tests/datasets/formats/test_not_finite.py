"""One NaN in a source of any format: refused with its episode named, or left out on request."""

from pathlib import Path

import pytest

from gaitforge.datasets import DatasetError, Selection, open_store
from gaitforge.datasets.formats import sources
from gaitforge.datasets.formats.transfer.exporting import export_selection
from gaitforge.datasets.formats.transfer.importing import import_source
from tests.datasets.formats import rows_format
from tests.datasets.formats.format_stores import Case, plain_store, random_episodes

EPISODES = random_episodes(6)


def actions(selection: Selection) -> list[bytes]:
    return sorted(selection.episode(i)["action"].tobytes() for i in range(len(selection)))


@pytest.mark.slow
def test_an_episode_with_nan_is_named_or_left_out(
    name: str, case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "SHARD_STEPS", 10)
    whole = case.make(tmp_path / "store", EPISODES).select()
    export_selection(name, whole, tmp_path / "out")
    case.spoil(tmp_path / "out")
    with pytest.raises(DatasetError, match=r"is not finite, in episode \d+; --drop-nan") as error:
        import_source(name, tmp_path / "out", tmp_path / "again")
    assert "\n" not in str(error.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "store"]

    for _ in range(2):  # importing again changes nothing
        report = import_source(name, tmp_path / "out", tmp_path / "again", drop_nan=True)
        again = open_store(tmp_path / "again")
        kept, before = actions(again.select()), actions(whole)
        assert len(kept) == len(before) - 1
        assert all(episode in before for episode in kept)
        assert (report.episodes, report.steps) == (len(kept), again.select().steps)
        assert again.verify() == []
    report = import_source(name, tmp_path / "out", tmp_path / "anew", drop_nan=True)
    left_out = f"not finite: 1 episode of {whole.steps - report.steps} step"
    assert left_out in " ".join(report.carried.notes)


def test_a_source_with_nothing_finite_is_refused(tmp_path: Path) -> None:
    whole = plain_store(tmp_path / "store", EPISODES).select()
    export_selection(rows_format.NAME, whole, tmp_path / "out")
    rows_format.spoil(tmp_path / "out", slice(None))
    with pytest.raises(DatasetError, match="out: every episode has values that are not finite"):
        import_source(rows_format.NAME, tmp_path / "out", tmp_path / "again", drop_nan=True)
    assert not (tmp_path / "again").exists()
