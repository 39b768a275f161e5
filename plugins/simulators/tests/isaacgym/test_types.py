"""The Isaac Gym worker against the declarations of Isaac Gym's API, at the language level 3.8.

isaacgym-stubs declares `gymapi` in a form that no checker takes as it is; `gymtorch`, which it
lacks, is declared in `typings`.
"""

import json
import re
import shutil
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[4]
WORKER = ROOT / "plugins" / "simulators" / "isaacgym" / "worker"
GYMTORCH = ROOT / "typings" / "isaacgym" / "gymtorch.pyi"
SETTINGS = {
    "include": ["checked"],
    "stubPath": "typings",
    "pythonVersion": "3.8",
    "typeCheckingMode": "strict",
    # Isaac Gym itself is not installed; its declarations are.
    "reportMissingModuleSource": "none",
}

WRONG = """
from isaacgym import gymapi, gymtorch

gym = gymapi.acquire_gym()
params = gymapi.SimParams()
sim = gym.create_sim(0, -1, gymapi.SIM_PHYSX, params)
gym.add_ground(sim, params)
gym.prepare_simulation(sim)
gym.set_actor_root_state_tensor(sim, 3.0)
params.subteps = 2
gymtorch.wrap_tensor(sim)
"""

PROGRAMS = {
    "wrong.py": WRONG,
    "newer.py": "match 1:\n    case _:\n        pass\n",
}


def repaired(declarations: str) -> str:
    """The text of isaacgym-stubs' gymapi.pyi with what stops checkers, or weakens them, put right.

    A method is called `lambda`, arrays are parametrised by their element instead of its dtype, and
    parameters without a type would make every call of theirs unknown to a strict check.
    """
    number = "float32|int16|uint32|uint8"
    for pattern, replacement in (
        (r"def lambda\(", "def lambda_("),
        (rf"numpy\.ndarray\[(?:numpy\.)?({number})\]", r"numpy.typing.NDArray[numpy.\1]"),
        (r"numpy\.ndarray\[[A-Za-z]+\]", "numpy.typing.NDArray[Any]"),
        (r"(?m)^import numpy$", "import numpy\nimport numpy.typing"),
        (r"\*args, \*\*kwargs", "*args: Any, **kwargs: Any"),
        (r"\b(other|state|arg\d)(?=[,)])", r"\1: Any"),
    ):
        declarations = re.sub(pattern, replacement, declarations)
    return declarations


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with pyright's settings, the declarations, the worker and small programs."""
    folder = tmp_path_factory.mktemp("types")
    package = folder / "typings" / "isaacgym"
    package.mkdir(parents=True)
    installed = distribution("isaacgym-stubs").locate_file("isaacgym-stubs/gymapi.pyi")
    (package / "gymapi.pyi").write_text(repaired(Path(str(installed)).read_text("utf-8")))
    (package / "__init__.pyi").touch()
    shutil.copy(GYMTORCH, package)
    shutil.copytree(WORKER, folder / "checked" / "worker", ignore=shutil.ignore_patterns("*.pyc"))
    for name, text in PROGRAMS.items():
        (folder / "checked" / name).write_text(text)
    (folder / "pyrightconfig.json").write_text(json.dumps(SETTINGS))
    return folder


@pytest.fixture(scope="module")
def complaints(workplace: Path) -> dict[str, list[str]]:
    """Pyright's complaints by file name: "line: rule: message"."""
    # The environment's own wrapper, and through it the Node that is installed with it.
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable]
    done = subprocess.run(
        command, cwd=workplace, capture_output=True, text=True, timeout=240, check=False
    )
    report = json.loads(done.stdout)
    checked = {path.name for path in (workplace / "checked").rglob("*.py")}
    assert report["summary"]["filesAnalyzed"] >= len(checked)
    found: dict[str, list[str]] = {name: [] for name in checked}
    for complaint in report["generalDiagnostics"]:
        line = complaint["range"]["start"]["line"] + 1
        text = f"{line}: {complaint.get('rule', 'syntax')}: {complaint['message']}"
        found.setdefault(Path(complaint["file"]).name, []).append(text)
    return found


@pytest.mark.slow
def test_the_worker_calls_isaac_gym_as_it_is_declared(complaints: dict[str, list[str]]) -> None:
    worker = sorted(path.name for path in WORKER.glob("*.py"))
    assert len(worker) > 3
    assert [f"{name}:{text}" for name in worker for text in complaints[name]] == []


def test_wrong_calls_and_syntax_newer_than_the_workers_python_are_reported(
    complaints: dict[str, list[str]],
) -> None:
    for line, rule in (
        (7, "reportArgumentType"),  # parameters of another kind
        (8, "reportAttributeAccessIssue"),  # a method that does not exist
        (9, "reportArgumentType"),  # a number for a tensor
        (10, "reportAttributeAccessIssue"),  # a misspelt attribute
        (11, "reportArgumentType"),  # in gymtorch
    ):
        assert any(text.startswith(f"{line}: {rule}: ") for text in complaints["wrong.py"])
    (complaint,) = complaints["newer.py"]
    assert "require Python 3.10 or newer" in complaint
