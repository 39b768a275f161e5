"""No command imports a large package that it does not need."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.pipeline.command_line import TINY_GRID

PROGRAM = """
import sys
from gaitforge.pipeline.cli.main import main
code = 0
try:
    code = main(sys.argv[2:])
except SystemExit as stop:
    code = stop.code
print(*(name for name in sys.argv[1].split(",") if name in sys.modules), file=sys.stderr)
sys.exit(code)
"""
LARGE = (
    "torch",
    "torch._dynamo",
    "mujoco",
    "numba",
    "prefect",
    "distributed",
    "matplotlib",
    "rsl_rl",
    "tensorboard",
    "duckdb",
    "pandas",
)
# Command -> the large packages that it may import.
ALLOWED = {
    "--help": "",
    "models": "",
    "formats": "",
    "run --list": "",
    "expert list": "numba",
    f"collect data.zarr {' '.join(map(str, TINY_GRID))}": "mujoco numba pandas",
    "info data.zarr": "",
    "query data.zarr": "",
    "query data.zarr --where return>-9": "duckdb",
    "train data.zarr --model bot --steps 1 --out run --set config.held_out_fraction=0": (
        "torch numba tensorboard"
    ),
    "status run": "",
    "evaluate run --terrain flat --skill stand --level 0 --episodes 1 --set robots=1": (
        "torch mujoco numba"
    ),
}


@pytest.mark.slow
def test_a_command_imports_no_large_package_that_it_does_not_need(tmp_path: Path) -> None:
    imported = {}
    for line in ALLOWED:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, ",".join(LARGE), *line.split()],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        imported[line] = {*done.stderr.splitlines()[-1].split()}
    needless = {line: names - {*ALLOWED[line].split()} for line, names in imported.items()}
    assert {line: names for line, names in needless.items() if names} == {}
