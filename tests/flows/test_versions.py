"""Stores of several versions of a simulator: refused, allowed, and simulated again."""

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gaitforge.collectors.legged.data import CollectionGrid
from gaitforge.collectors.physics.mujoco import backend
from gaitforge.datasets import open_store
from gaitforge.flows.progress import Silent
from gaitforge.flows.stages import recorded_versions
from gaitforge.flows.stages.collect import collect
from gaitforge.flows.stages.replay import replay
from gaitforge.flows.tasks.legged import LeggedPlan
from gaitforge.pipeline.cli.main import main

OTHER = "3.2.1"
GRID = CollectionGrid(terrains=("flat",), skills=("stand",), parts=2, episodes_per_part=2)
PLAN = LeggedPlan(grid=GRID, robots=2, threads=1)


def collected(path: Path, monkeypatch: pytest.MonkeyPatch, version: str, *parts: str) -> Path:
    """Parts of `PLAN` as another MuJoCo records them; the numbers are this one's."""
    with monkeypatch.context() as patch:
        patch.setattr(backend.MujocoBackend, "version", version)
        patch.setattr("gaitforge.flows.tasks.legged.released_version", lambda _: version)
        collect(PLAN, path, Silent(), parts)
    return path


@pytest.mark.slow
def test_versions_are_mixed_only_where_it_is_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = PLAN.part_ids()
    store = collected(tmp_path / "s.zarr", monkeypatch, OTHER, first)
    values = ("terrains=flat", "skills=stand", "parts=2", "episodes_per_part=2")
    settings = [word for value in values for word in ("--set", f"grid.{value}")]
    words = ["collect", str(store), *settings, "--robots", "2"]
    assert main(words) == 2
    assert f"was made by mujoco {OTHER}, and this is mujoco" in capsys.readouterr().err
    assert open_store(store).parts() == [first]
    # A worker whose version differs from that of the process that prepared the collection.
    with monkeypatch.context() as patch:
        patch.setattr(LeggedPlan, "simulator", lambda _: None)
        with pytest.raises(ValueError, match="give --mix-versions"):
            collect(PLAN, store, Silent())
    assert open_store(store).parts() == [first]
    assert main([*words, "--mix-versions"]) == 0
    capsys.readouterr()
    assert sorted(open_store(store).parts()) == sorted([first, second])
    assert main(words) == 0  # nothing is missing


def stores_of_two_versions(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """A store of another MuJoCo's part, and one of this one's."""
    first, second = PLAN.part_ids()
    own = backend.installed_version()
    return [
        collected(folder / "a.zarr", monkeypatch, OTHER, first),
        collected(folder / "b.zarr", monkeypatch, own, second),
    ]


def commands_of_the_other(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands that would run with the other MuJoCo, from a folder, as they are asked for."""
    ran: list[list[str]] = []

    def run(folder: Path | None, words: list[str], capture: bool = False) -> tuple[int, str]:
        ran.append(words)
        return 0, '{"faults": ["of the other"]}'

    own = backend.installed_version()
    monkeypatch.setattr(recorded_versions, "run_with", run)
    monkeypatch.setattr(
        recorded_versions, "recorded_mujoco", lambda v: None if v == own else folder
    )
    return ran


@pytest.mark.slow
def test_a_mixed_store_names_its_parts_and_repeats_each_with_its_own_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first, _ = PLAN.part_ids()
    own = backend.installed_version()
    stores = stores_of_two_versions(tmp_path, monkeypatch)
    with pytest.raises(ValueError, match=f"made by mujoco {OTHER}; .* --with-recorded-versions"):
        replay(stores[0], 1, 0, Silent())
    store = tmp_path / "s.zarr"
    assert main(["dataset", "merge", *map(str, stores), str(store)]) == 0
    assert f"parts of mujoco {', '.join(sorted([OTHER, own]))}" in capsys.readouterr().err
    assert main(["verify", str(store), "--replay", "1"]) == 2
    error = capsys.readouterr().err
    assert f"mujoco {OTHER} (part {first})" in error
    assert "--with-recorded-versions" in error

    # The other version is a process with a folder before its packages; here it is this version.
    ran = commands_of_the_other(tmp_path, monkeypatch)
    assert main(["verify", str(store), "--replay", "4", "--with-recorded-versions"]) == 1
    assert capsys.readouterr().out == "of the other\n"
    [words] = ran
    assert words == ["verify", str(store), "--replay", "4", "--json", "--simulator-version", OTHER]


VERSIONS = st.from_regex(r"\A[0-9]{1,2}(\.[0-9]{1,2}){0,3}(rc[0-9])?(\.post[0-9])?\Z")


@given(VERSIONS)
def test_a_plain_version_is_taken(text: str) -> None:
    assert recorded_versions.plain_version(text) == text


@given(
    st.one_of(
        st.text(max_size=30).filter(lambda text: text.strip("0123456789.abrcpostdev") != ""),
        st.sampled_from(["", "..", "../../x", "3.1/..", "3.1 --index-url=http://x", "3.1\n", "-r x",
                         "3.1; python", "3.1 @ file:///x", "3..1", "٣.١", "3.1+local", "v3.1"]),
    )
)  # fmt: skip
def test_a_text_that_is_no_version_becomes_no_path_and_no_argument(text: str) -> None:
    with pytest.raises(ValueError, match="is no version of mujoco"):
        recorded_versions.recorded_mujoco(text)


INSTALLER = """#!{python}
import pathlib, sys
words = sys.argv[1:]
folder = pathlib.Path(words[words.index("--target") + 1])
with open("{log}", "a") as log:
    log.write(" ".join(words) + "\\n")
requirements = words[words.index("--") + 1:]
(folder / "mujoco").mkdir()
helpers = [name for name in requirements if not name.startswith("mujoco==")]
body = "__version__ = '3.2.1'\\nMjModel = MjData = mj_step = None\\n"
body += "import mujoco.core\\n" if "{needs}" else ""
body += "class MjModel: from_xml_string = staticmethod(lambda text: None)\\n"
body += "MjData = lambda model: None\\nmj_step = lambda model, data: None\\n"
(folder / "mujoco" / "__init__.py").write_text(body)
if helpers:
    (folder / "mujoco" / "core.py").write_text("")
about = folder / "mujoco-3.2.1.dist-info"
about.mkdir()
needs = "Requires-Dist: mujoco-core==3.2.1\\nRequires-Dist: numpy\\n"
needs += "Requires-Dist: usd-core; extra == 'usd'\\n"
(about / "METADATA").write_text("Metadata-Version: 2.1\\nName: mujoco\\nVersion: 3.2.1\\n" + needs)
if "{breaks}":
    (folder / "mujoco" / "__init__.py").write_text("raise ImportError('of another Python')")
"""


def installer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, needs: str, breaks: str) -> Path:
    """A `uv` before all others on PATH, that writes a package of Python; returns its log."""
    log, tool = tmp_path / "log", tmp_path / "bin" / "uv"
    tool.parent.mkdir(exist_ok=True)
    text = INSTALLER.format(python=sys.executable, log=log, needs=needs, breaks=breaks)
    tool.write_text(text)
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tool.parent), prepend=":")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return log


def test_an_installed_version_is_of_this_python_and_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = installer(tmp_path, monkeypatch, needs="yes", breaks="")
    folder = recorded_versions.recorded_mujoco(OTHER)
    assert folder is not None
    assert folder.name.startswith(f"mujoco-{OTHER}-{sys.implementation.cache_tag}-")
    first, second = log.read_text().splitlines()
    assert f"--python {sys.executable} " in first
    assert first.endswith(f"-- mujoco=={OTHER}")
    # What the wheel needs of its own, but neither what is here nor what is optional.
    assert second.endswith(f"-- mujoco=={OTHER} mujoco-core=={OTHER}")
    assert recorded_versions.recorded_mujoco(OTHER) == folder
    assert len(log.read_text().splitlines()) == 2
    # One that cannot be imported any more is made again.
    (folder / "mujoco" / "core.py").unlink()
    assert recorded_versions.recorded_mujoco(OTHER) == folder
    assert len(log.read_text().splitlines()) == 4
    assert sorted(path.name for path in folder.parent.iterdir()) == [folder.name]
    code, output = recorded_versions.run_with(folder, ["info", str(tmp_path)], capture=True)
    assert (code, output) == (2, "")


def test_what_cannot_be_imported_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installer(tmp_path, monkeypatch, needs="", breaks="yes")
    with pytest.raises(ValueError, match=r"was installed but cannot be used: .*of another Python"):
        recorded_versions.recorded_mujoco(OTHER)
    assert list((tmp_path / "cache" / "gaitforge").iterdir()) == []
    (tmp_path / "bin" / "uv").write_text("#!/bin/sh\necho 'no such version' >&2; exit 1\n")
    with pytest.raises(ValueError, match=f"pip cannot install mujoco {OTHER}.*: no such version"):
        recorded_versions.recorded_mujoco(OTHER)
    assert list((tmp_path / "cache" / "gaitforge").iterdir()) == []
