"""The programs of examples/ do what they say."""

from pathlib import Path

import pytest

from examples import legged


@pytest.mark.slow
def test_collect_train_evaluate_and_export_in_python(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    legged.main(tmp_path, steps=2)
    printed = capsys.readouterr().out
    assert "4 episodes" in printed
    assert "return " in printed
    assert (tmp_path / "exported" / "policy.onnx").is_file()
    first = (tmp_path / "fcnet" / "evaluation.json").read_bytes()
    legged.main(tmp_path, steps=2)
    assert (tmp_path / "fcnet" / "evaluation.json").read_bytes() == first
