"""Environments that files name are code: imported only where the command line names them."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gaitforge.common.trust import VARIABLE, UntrustedCodeError, trusting
from gaitforge.plugins.gym.environments.environment_id import EnvironmentId
from tests.pipeline.canary import (
    CANARY,
    DRY,
    NAMES,
    SMALL,
    assert_no_text_imports,
    assert_trust_imports,
    code_of,
)
from tests.pipeline.command_line import call

pytest.importorskip("gymnasium")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the canary's module, a store, a run and an experiment, the present one."""
    folder = tmp_path_factory.mktemp("trust")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.syspath_prepend(str(folder))
        patch.setenv(VARIABLE, "")
        Path("canary.py").write_text(CANARY)
        collect = ["gym", "collect", "s.zarr", "--env", "Pendulum-v1,max_steps=9", "--quality"]
        assert call(*collect, "random", "--steps", "40", "--processes", "1") == 0
        train = ["train", "s.zarr", "--model", "mlp", "--steps", "1", "--batch-size", "2"]
        assert call(*train, "--set", "config.held_out_fraction=0", "--out", "run") == 0
        learners = ["--learners", "mlp", "--steps", "1", "--episodes", "1", "--seeds", "0"]
        # Whether the run is better than chance, so that it can score 100, does not matter here.
        call("run", "compare", "s.zarr", *learners, "--expert", "run", "--out", "many")
        assert Path("many/plan.json").is_file()
        yield folder


READERS: dict[str, list[tuple[str, ...]]] = {
    "s.zarr/zarr.json": [
        ("train", "s.zarr", *SMALL, "--out", "out"),
        ("run", "compare", "s.zarr", "--out", "out", *DRY),
        ("verify", "s.zarr", "--replay", "1"),
    ],
    "s.zarr.records/plan-*.json": [
        ("train", "s.zarr", *SMALL, "--out", "out"),
        ("verify", "s.zarr", "--replay", "1"),
        ("run", "compare", "s.zarr", "--out", "out", *DRY),
        ("collect", "out/x.zarr", "--plan", "{file}"),
        ("status", "s.zarr"),
        ("plan", "s.zarr"),
    ],
    "run/plan.json": [
        ("evaluate", "run", "--episodes", "1"),
        ("train", "s.zarr", "--plan", "{file}", "--out", "out/run"),
        ("run", "robustness", "run", "--out", "out/many", *DRY),
        ("view", "run", "--out", "out/page.html"),
        ("status", "run"),
    ],
    "run/config.json": [("train", "s.zarr", *SMALL, "--out", "run"), ("status", "run")],
    "run/checkpoint.safetensors": [
        ("evaluate", "run", "--episodes", "1"),
        ("export", "run", "out/exported"),
        ("gym", "collect", "out/y.zarr", "--env", "Pendulum-v1,max_steps=9", "--policies", "run",
         "--steps", "9", "--processes", "1"),
        ("train", "s.zarr", *SMALL, "--out", "run"),
    ],
    "many/plan.json": [
        ("run", "many", *DRY),
        ("run", "many", "--stage", "evaluate expert of pendulum-v1-db1e73"),
        ("status", "many"),
        ("report", "many"),
    ],
}  # fmt: skip
"""File -> commands that read it."""
REFUSED: dict[str, set[str]] = {
    "s.zarr/zarr.json": {"env"},
    "s.zarr.records/plan-*.json": {"env", "kind", "policies"},
    "run/plan.json": {"env", "task", "model"},
    "run/config.json": set(),
    "run/checkpoint.safetensors": {"kind"},
    "many/plan.json": {"expert"},
}
"""File -> names of values that are refused, in some command, as names of code."""


@pytest.mark.long
@pytest.mark.parametrize("name", READERS)
def test_no_text_of_a_file_imports_or_calls_what_it_names(
    place: Path, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert_no_text_imports(place, name, READERS[name], REFUSED[name], capfd)


def test_the_same_text_on_the_command_line_or_by_trust_is_imported(
    place: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    [file] = place.glob("run/checkpoint.safetensors")
    assert_trust_imports(file, ["evaluate", "run", "--episodes", "1"], capfd)
    sys.modules.pop("canary", None)
    assert call("evaluate", "run", "--task", "gym", "--set", f"env={NAMES[1]}") == 2
    assert Path("sang").exists(), "typed in a setting"
    Path("sang").unlink()


def test_training_needs_no_trust_in_the_environment_and_evaluating_does(
    place: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    module = "from gymnasium.envs.classic_control.pendulum import PendulumEnv as Own\n"
    (place / "mine.py").write_text(module + "open('sang', 'w').write('imported')\n")
    collect = ["gym", "collect", "own.zarr", "--env", "mine:Own,max_steps=9", "--quality", "random"]
    assert call(*collect, "--steps", "20", "--processes", "1") == 0
    Path("sang").unlink()
    sys.modules.pop("mine")
    train = ["train", "own.zarr", *SMALL, "--set", "config.held_out_fraction=0", "--out", "own"]
    assert call(*train) == 0
    capfd.readouterr()
    assert call("evaluate", "own", "--episodes", "1") == 2
    assert "names the code 'mine:Own'" in capfd.readouterr().err
    assert not Path("sang").exists()
    assert call("evaluate", "own", "--episodes", "1", "--trust", "mine:Own") == 0
    Path("sang").unlink()


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("Pendulum-v1,max_steps=9,make.g=9.81", ""),
        ("FrozenLake-v1,make.map_name=8x8", ""),
        ("Pendulum-v1,make.file=/etc/passwd", "/etc/passwd"),
        ('Pendulum-v1,make.config={"a":["os.system"]}', "os.system"),
        ('Pendulum-v1,reset.config={"os.system":1}', "os.system"),
        ("os:system,max_steps=1,make.command=id", "os:system"),
    ],
)
def test_settings_of_an_environment_may_not_name_code_or_files(text: str, code: str) -> None:
    settings = EnvironmentId.parse(text)
    if not code:
        settings.check_trusted()
        return
    with pytest.raises(UntrustedCodeError) as error:
        settings.check_trusted()
    assert error.value.text == code
    with trusting([code]):
        settings.check_trusted()


def test_the_options_of_an_environment_name_code() -> None:
    words = ["gym", "collect", "a:b", "--env", "e:make", "--wrapper", "w:W"]
    wanted = {"e:make", "w:W", "x.xml", "make.file"}
    assert code_of([*words, "--make", "file=x.xml"]) == wanted
