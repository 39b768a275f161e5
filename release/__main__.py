"""Build sdist and wheel into dist/, check them, and build the container image.

    python -m release                        # from a tree without uncommitted changes
    python -m release --uncommitted          # to try it
    python -m release --url https://HOST/OWNER/gaitforge    # README's links lead there

`make release` runs it. Both files appear in dist/ only if all checks pass.
"""

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from release.build import build_sdist, build_wheel, project_table, stage_tree, unpack
from release.checks import (
    metadata_faults,
    sdist_faults,
    tree_faults,
    wheel_differences,
    wheel_faults,
)
from release.readme import absolute_links, check_address, link_faults

ROOT = Path(__file__).resolve().parent.parent
_BUILDERS = {"podman": "info", "docker": "info", "buildah": "info"}
"""Program -> its command that fails where it cannot build, as without a daemon."""
_ANSWER_S = 20.0


def main(words: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Make a release of the tree; returns an exit code."""
    arguments = build_parser().parse_args(words)
    try:
        release(arguments, root)
    except ValueError as error:
        print(f"release: error: {error}", file=sys.stderr)
        return 2
    except subprocess.CalledProcessError as error:
        print(f"release: error: {error.cmd[0]} failed\n{error.stdout or ''}", file=sys.stderr)
        return 1
    return 0


def build_parser() -> argparse.ArgumentParser:
    """The command line's options."""
    parser = argparse.ArgumentParser("release", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("dist"), help="folder of both files")
    parser.add_argument(
        "--uncommitted", action="store_true", help="release changes that are not committed, too"
    )
    parser.add_argument(
        "--url", default="", help="the repository's address; without it README loses its links"
    )
    parser.add_argument("--no-image", action="store_true", help="build no container image")
    parser.add_argument(
        "--build-arg",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="of the Containerfile, see docs/containers.md",
    )
    return parser


def release(arguments: argparse.Namespace, root: Path) -> None:
    """Build, check and keep; ValueError with all faults if there is one."""
    check_address(arguments.url)
    _refuse(tree_faults(root, arguments.uncommitted))
    (root / "build").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root / "build", prefix="release-") as folder:
        built = Path(folder)
        tree = stage_tree(root, built / "tree")
        version = project_table(tree)["version"]
        _refuse(link_faults(tree))
        absolute_links(tree, arguments.url, f"v{version}")
        files = _built_files(tree, built)
        _refuse(metadata_faults(files))
        target = arguments.out if arguments.out.is_absolute() else root / arguments.out
        for path in files:
            _keep(path, target)
        if not arguments.no_image:
            print(make_image(tree, version, arguments.build_arg))


def _built_files(tree: Path, built: Path) -> list[Path]:
    """The sdist and the wheel of a tree, whose contents are checked."""
    sdist = build_sdist(tree, built / "files")
    wheel = build_wheel(tree, built / "files")
    again = build_wheel(unpack(sdist, built / "unpacked"), built / "again")
    _refuse(
        [
            *sdist_faults(sdist, tree),
            *wheel_faults(wheel, tree),
            *wheel_differences(wheel, again),
        ]
    )
    return [sdist, wheel]


def _refuse(faults: Sequence[str]) -> None:
    if faults:
        raise ValueError("; ".join(faults))


def _keep(path: Path, folder: Path) -> None:
    """Put a file into a folder, where an older one is replaced at once; prints its hash."""
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f".{path.name}"
    shutil.copyfile(path, temporary)
    with temporary.open("rb") as file:
        os.fsync(file.fileno())
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    os.replace(temporary, folder / path.name)
    print(f"{folder / path.name}  {path.stat().st_size:,} bytes  sha256 {sha256}")


def make_image(tree: Path, version: str, arguments: Sequence[str] = ()) -> str:
    """Build the image of a tree; returns its name, or why there is none."""
    builder, why = find_builder()
    if not builder:
        return f"no image: {why}"
    name = f"gaitforge:{version}"
    options = [word for argument in arguments for word in ("--build-arg", argument)]
    command = [
        builder,
        "build",
        "-f",
        "Containerfile",
        "--target",
        "cpu",
        "-t",
        name,
        *options,
        ".",
    ]
    subprocess.run(command, cwd=tree, check=True)
    return f"image {name}, by {builder}"


def find_builder() -> tuple[str, str]:
    """The first program that can build images, or an empty name and why there is none."""
    silent = []
    for program, command in _BUILDERS.items():
        path = shutil.which(program)
        if path is None:
            continue
        try:
            done = subprocess.run(
                [path, command], capture_output=True, check=False, timeout=_ANSWER_S
            )
        except (OSError, subprocess.TimeoutExpired):
            silent.append(program)
            continue
        if done.returncode == 0:
            return program, ""
        silent.append(program)
    if silent:
        return "", f"{' and '.join(silent)} cannot build here (`{silent[0]} info` says why)"
    return "", f"none of {', '.join(_BUILDERS)} is installed"


if __name__ == "__main__":
    sys.exit(main())
