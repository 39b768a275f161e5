"""numba where no disk takes its cache, and beside a coverage that lacks what it imports."""

import errno
import os
import subprocess
import sys
from pathlib import Path

MODULE = """
import sys
from gaitforge.common.kernels import compiled, compiled_fast, elementwise

FULL = {full}

def save(*arguments):
    raise OSError(28, "No space left on device", "/full/cache")

if FULL:
    from gaitforge.common.kernels import numba
    numba()
    from numba.core import caching
    caching.IndexDataCacheFile.save = save

@compiled_fast()
def twice(x):
    return 2 * x

@compiled
def thrice(x):
    return 3 * x

@elementwise
def plus_one(x):
    return x + 1

print(twice(2), twice(2.5), thrice(2), plus_one(2.0), sys.modules.get("coverage"))
"""


def run(folder: Path, full: bool, cache: Path) -> subprocess.CompletedProcess[str]:
    (folder / "kernels.py").write_text(MODULE.format(full=full))
    environment = os.environ | {"NUMBA_CACHE_DIR": str(cache), "PYTHONPATH": str(folder)}
    command = [sys.executable, "kernels.py"]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def test_a_full_disk_keeps_machine_code_in_memory_and_is_said_once(tmp_path: Path) -> None:
    done = run(tmp_path, True, tmp_path / "cache")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("4 5.0 6 3.0")
    assert done.stderr.count("compiled in memory") == 1
    assert f"/full/cache: {os.strerror(errno.ENOSPC)}" in done.stderr


def test_numba_works_beside_an_old_coverage(tmp_path: Path) -> None:
    old = tmp_path / "coverage"
    old.mkdir()
    (old / "__init__.py").write_text("class Coverage: pass\nfrom coverage import types\n")
    (old / "types.py").write_text("TTraceData = dict\n")
    done = run(tmp_path, False, tmp_path / "cache")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("4 5.0 6 3.0")
    assert str(old) in done.stdout, "the old coverage is there again after the import"
