"""Names that files hold decide nothing outside the own folder: nothing is written there.

Each kind of file that comes from elsewhere gets one name of an attacker's choice, and is used as a
user would.
"""

import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gaitforge.collectors.robots.robot import ASSETS, load_robot, stored_robot
from gaitforge.datasets import Selection, Store, open_store
from gaitforge.datasets.catalog.edit_log import Edit
from gaitforge.datasets.edits.assemble import merge_stores
from tests.datasets.making import small_store


def changed_json(path: Path, change: Callable[[Any], object]) -> None:
    tree = json.loads(path.read_text())
    change(tree)
    path.write_text(json.dumps(tree))


def robot_card(folder: Path, name: str) -> None:
    """A robot's MJCF."""
    shutil.copytree(ASSETS / "aliengo", folder / "robot")
    changed_json(folder / "robot/robot.json", lambda card: card.update(name="mine", mjcf=name))
    load_robot(str(folder / "robot"))


def robot_in_a_store(folder: Path, name: str) -> None:
    """The name and MJCF of a robot that a store brings."""
    card = json.loads((ASSETS / "aliengo/robot.json").read_text()) | {"mjcf": name}
    mjcf = (ASSETS / "aliengo/aliengo.xml").read_text()
    stored_robot({"robots": {name: {"card": card, "mjcf": mjcf}}}, name)


def tag(folder: Path, name: str) -> None:
    """The tags of a store."""
    store = small_store(folder / "store", [(3, 2)])
    try:
        store.tag(name)
    finally:
        open_store(folder / "store", tag=name)


def annotation(folder: Path, name: str) -> None:
    """The columns that an edit of a received store sets, and the folder of a field's."""
    store = small_store(folder / "store", [(3, 2)])
    rows = store.select().annotate({"note": "x"}).rows.rename_columns(["part", "row", name])
    store.log.append("annotate", {}, rows, {}, store.edits()[-1].sha256)
    edited = open_store(folder / "store")
    edited.select().save(folder / "chosen.json")
    merge_stores(edited, small_store(folder / "other", [(3, 2)]), folder / "both")


def field_folder(folder: Path, name: str) -> None:
    """The folder of a field that an edit of a received store adds."""
    store = small_store(folder / "store", [(3, 2)])
    edit: Edit = store.select().annotate({"note": "x"})
    content = {"field": {"name": "new", "shape": [], "dtype": "float32"}, "folder": name}
    store.log.append("field", {**content, "parts": {}}, edit.rows.slice(0, 0), {}, edit.sha256)
    edited = open_store(folder / "store")
    edited.gc()
    edited.verify()


def selection_file(folder: Path, name: str) -> None:
    """The parts of a saved selection."""
    store = small_store(folder / "store", [(3, 2)])
    store.select().save(folder / "chosen.json")
    text = (folder / "chosen.json").read_text().replace("part-000", json.dumps(name)[1:-1])
    (folder / "chosen.json").write_text(text)
    Selection.load(Store.open(folder / "store"), folder / "chosen.json")


KINDS = (
    robot_card,
    robot_in_a_store,
    tag,
    annotation,
    field_folder,
    selection_file,
)

PIECES = st.sampled_from(
    ["..", ".", "/", "\\", "~", "$(touch x)", "a", "é", "\n", " ", "-", "%2e", "C:", "*", "{0}", ""]
)
NAMES = st.one_of(
    st.sampled_from(["../../../../victim", "../victim", "{folder}/victim", "x" * 300, "..", "."]),
    st.lists(PIECES, min_size=1, max_size=7).map("".join),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=6),
)


def _files(folder: Path, own: Path) -> dict[Path, bytes]:
    """The files that lie outside the own folder."""
    return {
        path: path.read_bytes() if path.is_file() else b""
        for path in folder.rglob("*")
        if not path.is_relative_to(own) and not own.is_relative_to(path)
    }


@pytest.mark.slow
@pytest.mark.parametrize("use", KINDS)
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(name=NAMES)
def test_nothing_is_written_outside(
    use: Callable[[Path, str], None], tmp_path_factory: pytest.TempPathFactory, name: str
) -> None:
    assert_nothing_outside(use, tmp_path_factory, name)


def assert_nothing_outside(
    use: Callable[[Path, str], None], tmp_path_factory: pytest.TempPathFactory, name: str
) -> None:
    """What uses a name that a file has, in a folder of its own, changes no file outside it."""
    folder = tmp_path_factory.mktemp("names")
    own = folder / "a/b/c/own"
    own.mkdir(parents=True)
    (folder / "victim").write_bytes(b"mine")
    (folder / "a/b/victim").mkdir()
    (folder / "a/b/victim/robot.xml").write_bytes(b"mine")
    before = _files(folder, own)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(own))
        patch.chdir(own)
        with suppress(ValueError):  # a name that is refused
            use(own, name.replace("{folder}", str(folder)))
    assert _files(folder, own) == before
    shutil.rmtree(folder)
