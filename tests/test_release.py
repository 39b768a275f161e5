"""A release: what is refused, what README becomes, what both files hold."""

import hashlib
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from email import message_from_bytes
from pathlib import Path
from zipfile import ZipFile

import pytest

from release.__main__ import find_builder, make_image
from release.checks import sdist_faults, tree_faults, wheel_differences, wheel_faults
from release.readme import absolute_links, link_faults, links

ROOT = Path(__file__).resolve().parent.parent
URL = "https://example.org/someone/gaitforge"
README = """# A robot

![It walks](docs/walk.webp) and [how](docs/how.md#first),
see [its page](https://example.org) or [below](#b).

```python
store[a](b.md)
```
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A small repository whose versions agree, committed."""
    root = tmp_path / "tree"
    (root / "docs").mkdir(parents=True)
    files = {
        "README.md": README,
        "docs/walk.webp": "picture",
        "docs/how.md": "# First",
        "pyproject.toml": '[project]\nname = "gaitforge"\nversion = "1.2.0"\n',
        "CHANGELOG.md": "# Changelog\n\n## 1.2.0 (unreleased)\n\n## 1.1.0\n",
        "CITATION.cff": "version: 1.2.0\n",
    }
    for name, text in files.items():
        (root / name).write_text(text)
    git(root, "init", "-q")
    commit(root)
    return root


def git(root: Path, *words: str) -> None:
    author = ("-c", "user.name=Test", "-c", "user.email=test@example.org")
    subprocess.run(["git", *author, *words], cwd=root, check=True, capture_output=True)


def commit(root: Path) -> None:
    git(root, "add", "-A")
    git(root, "commit", "-q", "-m", "A change")


def test_versions_and_the_tag_agree_or_are_named(tree: Path) -> None:
    assert tree_faults(tree, False) == []
    git(tree, "tag", "v1.2.0")
    assert tree_faults(tree, False) == ["CHANGELOG.md heads the tagged 1.2.0 with (unreleased)"]
    (tree / "CHANGELOG.md").write_text("# Changelog\n\n## 1.2.0 (2030-01-01)\n")
    commit(tree)
    git(tree, "tag", "-f", "v1.2.0")
    assert tree_faults(tree, False) == []
    for name in ("pyproject.toml", "CITATION.cff", "CHANGELOG.md"):
        text = (tree / name).read_text()
        (tree / name).write_text(text.replace("1.2.0", "1.3.0"))
        faults = tree_faults(tree, True)
        assert any("1.3.0" in fault for fault in faults), name
        assert len(faults) == (3 if name == "pyproject.toml" else 1), faults
        (tree / name).write_text(text)


def test_uncommitted_changes_are_refused_unless_wanted(tree: Path) -> None:
    (tree / "docs/new.md").write_text("new")
    [fault] = tree_faults(tree, False)
    assert "docs/new.md" in fault
    assert "--uncommitted" in fault
    assert tree_faults(tree, True) == []


def test_links_lead_to_the_tagged_files_and_code_stays(tree: Path) -> None:
    assert link_faults(tree) == []
    absolute_links(tree, f"{URL}.git", "v1.2.0")
    text = (tree / "README.md").read_text()
    assert f"![It walks]({URL}/raw/v1.2.0/docs/walk.webp)" in text
    assert f"[how]({URL}/blob/v1.2.0/docs/how.md#first)" in text
    assert "[its page](https://example.org)" in text
    assert "store[a](b.md)" in text
    urls = tomllib.loads((tree / "pyproject.toml").read_text())["project"]["urls"]
    assert urls["Repository"] == URL


def test_without_an_address_links_are_words(tree: Path) -> None:
    before = (tree / "pyproject.toml").read_bytes()
    absolute_links(tree, "", "v1.2.0")
    text = (tree / "README.md").read_text()
    assert "\n and how,\nsee [its page](https://example.org) or below.\n" in text
    assert (tree / "pyproject.toml").read_bytes() == before
    with pytest.raises(ValueError, match="https://"):
        absolute_links(tree, "ftp://example.org", "v1.2.0")


def test_a_link_to_nothing_is_named(tree: Path) -> None:
    (tree / "docs/how.md").unlink()
    assert link_faults(tree) == ["README links to docs/how.md, which is not in the tree"]


@pytest.mark.parametrize(
    ("programs", "built", "said"),
    [
        ({"podman": 0, "docker": 1}, True, "image gaitforge:1.2.0, by podman"),
        ({"podman": 1, "docker": 0}, True, "image gaitforge:1.2.0, by docker"),
        ({"docker": 1}, False, "no image: docker cannot build here"),
        ({}, False, "no image: none of podman, docker, buildah is installed"),
    ],
)
def test_the_first_program_that_answers_builds_the_image(
    programs: dict[str, int],
    built: bool,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Programs in its place: they exit with a code for `info`, and note how they build."""
    for name, code in programs.items():
        script = f'#!/bin/sh\n[ "$1" = info ] && exit {code}\necho "$@" > built\n'
        (tmp_path / name).write_text(script)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert bool(find_builder()[0]) == built
    assert make_image(tmp_path, "1.2.0", ["TORCH_INDEX=X"]).startswith(said)
    if built:
        words = (tmp_path / "built").read_text().split()
        assert words[0] == "build"
        assert "TORCH_INDEX=X" in words
        assert words[-3:] == ["--build-arg", "TORCH_INDEX=X", "."]


def run_release(out: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "release", "--uncommitted", "--no-image", "--out", str(out)]
    return subprocess.run([*command, *words], cwd=ROOT, capture_output=True, text=True, check=False)


def rewritten(wheel: Path, target: Path, change: Callable[[dict[str, bytes]], None]) -> Path:
    """A copy of a wheel with other files."""
    with ZipFile(wheel) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    change(files)
    copy = target / wheel.name
    with ZipFile(copy, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return copy


@pytest.mark.slow
def test_this_tree_can_be_released(tmp_path: Path) -> None:
    if not (ROOT / "plugins/player/built/main.js").is_file():
        pytest.skip("the player's page is not built here")
    done = run_release(tmp_path / "one", "--url", URL)
    assert done.returncode == 0, done.stdout + done.stderr
    [wheel] = (tmp_path / "one").glob("*.whl")
    [sdist] = (tmp_path / "one").glob("*.tar.gz")
    assert hashlib.sha256(wheel.read_bytes()).hexdigest() in done.stdout

    with ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith("/METADATA")]
        metadata = message_from_bytes(archive.read(name))
    assert metadata["Description-Content-Type"] == "text/markdown"
    description = metadata.get_payload()
    assert isinstance(description, str)
    targets = [match[3] for match in links(description)]
    assert len(targets) > 20
    assert all(target.startswith((URL, "https://arxiv.org/")) for target in targets)

    assert wheel_faults(wheel, ROOT) == sdist_faults(sdist, ROOT) == []
    changed = rewritten(wheel, tmp_path, spoil)
    faults = " ".join(wheel_faults(changed, ROOT))
    for name in ("gaitforge/datasets/__init__.py", "runs/demo/report.html", "built/main.css"):
        assert name in faults
    assert "gaitforge/common/files.py" in wheel_differences(wheel, changed)[0]


def spoil(files: dict[str, bytes]) -> None:
    """A lost module, a run, an empty page and another module."""
    del files["gaitforge/datasets/__init__.py"]
    files["runs/demo/report.html"] = b"<html>"
    files["gaitforge/plugins/player/built/main.css"] = b""
    files["gaitforge/common/files.py"] += b"\n"


def test_a_wrong_address_is_one_line(tmp_path: Path) -> None:
    done = run_release(tmp_path / "out", "--url", "git@example.org:someone/gaitforge")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "begins with https://" in done.stderr
    assert not os.path.lexists(tmp_path / "out")
