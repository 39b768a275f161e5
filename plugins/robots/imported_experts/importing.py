"""Folders of imported experts: the policy's file and a card with its layout."""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import yaml

from gaitforge.collectors.experts.expert import load_expert
from gaitforge.collectors.robots.robot import (
    CARD_FILE,
    N_JOINTS,
    RobotCard,
    absolute_robot,
    load_robot,
    own_files,
)
from gaitforge.common.errors import failures, names_allowed
from gaitforge.common.files import new_folder
from gaitforge.common.limits import check_archive
from gaitforge.datasets.layout import check_outside_stores
from gaitforge.plugins.robots.entries import EXPERT_FORMAT
from gaitforge.plugins.robots.imported_experts.networks import (
    Network,
    OnnxNetwork,
    check_torchscript,
    check_trusted,
    load_onnx,
    trust_program,
)
from gaitforge.plugins.robots.imported_experts.policy import (
    ImportedPolicy,
    Layout,
    layout_of_metadata,
    parse_layout,
    width,
)
from gaitforge.plugins.robots.writing import write_card

CARD = EXPERT_FORMAT.card
ANSWERS = ("answers.json", "answers.npz")
FORMAT = "gaitforge-imported-expert"
FORMAT_VERSION = 1
LAYOUTS = Path(__file__).parent / "layouts"
_KEYS = {"observation": 0, "action": N_JOINTS, "qpos": 7 + N_JOINTS, "qvel": 6 + N_JOINTS,
         "command": 0, "last_action": N_JOINTS}  # fmt: skip
"""Array of known answers -> its columns; 0 for the layout's."""
_SUFFIXES = (".onnx", ".pt", ".jit")
_OWN_ROBOT = "robot"


def template(name: str) -> str:
    """The layout of a project's usual policy, as YAML to fill in; ValueError for another name."""
    names = sorted(path.stem for path in LAYOUTS.glob("*.yaml"))
    if name not in names:
        raise ValueError(f"no template '{name}'; {names_allowed(name, names)}")
    return (LAYOUTS / f"{name}.yaml").read_text(encoding="utf-8")


def import_expert(
    policy: Path,
    out: Path,
    robot: str = "",
    layout: Path | None = None,
    answers: Path | None = None,
    gains: str = "",
    *,
    trust: bool = False,
) -> Path:
    """Write the folder of a policy's expert, and return the path of its card.

    Args:
        policy: an ONNX or TorchScript file; out: the new folder, whose name is the expert's.
        robot: a name or path, by default the layout's.
        layout: a YAML file, whose keys replace those of the ONNX file's metadata.
        answers: observations and actions that are known, for `read_answers`.
        gains: where the policy's gains are not the robot's, "policy" writes a robot with the
            policy's gains and default pose into the folder, "robot" keeps the robot.
        trust: allow a TorchScript file, which is a program, to run now and later.

    Raises:
        ValueError: a file that cannot be read, a layout that does not fit, other gains, or a
            TorchScript file that the user has not allowed to run.
    """
    if not re.fullmatch(r"[\w.-]+", out.name):
        raise ValueError(f"the name '{out.name}' may have letters, digits, '_', '-' and '.' only")
    if check_outside_stores(out).exists():
        raise ValueError(f"{out} exists already")
    if policy.suffix not in _SUFFIXES or not policy.is_file():
        raise ValueError(f"no policy {policy}; a file that ends with {', '.join(_SUFFIXES)}")
    content, metadata = _read_policy(policy)
    if policy.suffix != ".onnx":
        _allow(content, policy, trust)
    values = layout_of_metadata(metadata) | (_read_yaml(layout) if layout else {})
    if not values:
        raise ValueError(
            f"{policy} does not tell what it observes; give --layout, a file that `gaitforge "
            "expert template` prints and you fill in"
        )
    parsed = parse_layout(values, str(layout or policy))
    if not (robot or parsed.robot):
        raise ValueError("name the policy's robot: --robot go1")
    card = load_robot(robot or parsed.robot)
    out.parent.mkdir(parents=True, exist_ok=True)
    with new_folder(out) as folder:
        name = _robot_of(card, parsed, gains, folder) or absolute_robot(robot or parsed.robot)
        (folder / f"policy{policy.suffix}").write_bytes(content)
        if answers is not None:
            read_answers(answers)
            (folder / ANSWERS[answers.suffix == ".npz"]).write_bytes(answers.read_bytes())
        record = {"format": FORMAT, "format_version": FORMAT_VERSION, "robot": name}
        record |= {"policy": f"policy{policy.suffix}", "source": policy.name, "layout": values}
        (folder / CARD).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        own_path = folder / _OWN_ROBOT
        load_imported(
            folder / CARD, record, load_robot(str(own_path)) if own_path.exists() else card
        )
    return out / CARD


def load_imported(
    path: Path, card: Mapping[str, Any], robot: RobotCard
) -> tuple[ImportedPolicy, str]:
    """The policy of an imported expert's card, and the hash of its file, layout and robot.

    ValueError for a card of another version, or a policy that its layout does not fit.
    """
    if (card.get("format"), card.get("format_version")) != (FORMAT, FORMAT_VERSION):
        raise ValueError(f"{path} is no card of an expert that this version imported")
    folder = path.parent
    layout = parse_layout(card["layout"], str(path))
    file = policy_file(folder, card)
    try:
        policy = ImportedPolicy(folder.name, robot, layout, open_network(file, width(layout)))
    except ValueError as error:
        terms = ", ".join(f"{term.name} {term.width * term.history}" for term in layout.terms)
        raise ValueError(f"{error}; the layout's terms: {terms}") from None
    parts = [hashlib.sha256(data).hexdigest() for data in (file.read_bytes(), *own_files([robot]))]
    text = json.dumps([*parts, robot.name, card["layout"]], sort_keys=True)
    return policy, hashlib.sha256(text.encode()).hexdigest()[:16]


def imported_policy(name: str) -> ImportedPolicy:
    """The policy of an imported expert; ValueError for one of ours."""
    policy = load_expert(name).policy
    if not isinstance(policy, ImportedPolicy):
        raise ValueError(f"expert {name} is not imported; `gaitforge evaluate {name}` measures it")
    return policy


def trust_expert(folder: Path) -> Path:
    """Allow the program of an imported expert to run; returns its file. It is not run now.

    Raises:
        ValueError: no imported expert, or one whose policy is no TorchScript file.
    """
    if not (folder / CARD).is_file():
        raise ValueError(f"{folder} holds no {CARD}: no expert that was imported")
    with failures(f"{folder / CARD} cannot be read", OSError, ValueError, error=ValueError):
        card = json.loads((folder / CARD).read_text(encoding="utf-8"))
    if not isinstance(card, dict):
        raise ValueError(f"{folder / CARD} is no card of an expert")
    file = policy_file(folder, card)
    if file.suffix == ".onnx":
        raise ValueError(f"{file} is ONNX, which is no program; there is nothing to trust")
    _allow(file.read_bytes(), file, trust=True)
    return file


def policy_file(folder: Path, card: Mapping[str, Any]) -> Path:
    """The policy's file of an expert's card, which lies in its folder; ValueError for others."""
    names = [f"policy{suffix}" for suffix in _SUFFIXES]
    name = card.get("policy")
    if name not in names:
        raise ValueError(f"{folder / CARD}: its policy '{name}' is none of {', '.join(names)}")
    file = folder / name
    if not file.is_file():
        raise ValueError(f"{folder} lacks {name}")
    return file


def _allow(content: bytes, policy: Path, trust: bool) -> None:
    """Put a TorchScript file on the user's list, or raise ValueError where it is not there."""
    check_torchscript(content, policy)
    if trust:
        trust_program(content, str(policy.absolute()))
    check_trusted(content, policy, "give --trust")


def open_network(path: Path, width: int) -> Network:
    """The network of a file that reads `width` numbers; ValueError where it cannot."""
    if path.suffix == ".onnx":
        return OnnxNetwork(path, width)
    from gaitforge.plugins.robots.imported_experts.torchscript import TorchScriptNetwork

    return TorchScriptNetwork(path, width)


def read_answers(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a file of known answers: JSON, or an NPZ without objects.

    They have K rows: `observation`, and the `action` that belongs to it; and to test the terms,
    too, `qpos` (K, 19) and `qvel` (K, 18), MuJoCo's with the joints in the policy's order,
    `command` and `last_action`. ValueError for a file without them.
    """
    kinds = OSError, EOFError, BadZipFile, ValueError, TypeError, KeyError
    with failures(f"{path} holds no known answers", *kinds, error=ValueError):
        if path.suffix == ".npz":
            check_archive(path)
            with np.load(path, allow_pickle=False) as arrays:
                known = {name: arrays[name].astype(float) for name in _KEYS if name in arrays}
        else:
            raw = json.loads(path.read_text(encoding="utf-8"))
            known = {name: np.array(raw[name], np.float64) for name in _KEYS if name in raw}
        count = len(known["observation"])
        if not count or any(value.shape[:-1] != (count,) for value in known.values()):
            raise ValueError("every array needs a row for each observation")
        for name, value in known.items():
            if _KEYS[name] not in (0, value.shape[1]):
                raise ValueError(f"{name} needs {_KEYS[name]} columns, not {value.shape[1]}")
        if "qpos" in known and not {"qvel", "command", "last_action"} <= known.keys():
            raise ValueError("qpos needs qvel, command and last_action")
    return known


def _robot_of(robot: RobotCard, layout: Layout, gains: str, folder: Path) -> str:
    """Write the policy's own robot if it needs one; its path in the folder, or an empty text."""
    if (layout.stiffness is None) != (layout.damping is None):
        raise ValueError("stiffness and damping of a layout go together: give both or none")
    if layout.stiffness is None and gains == "policy":
        raise ValueError("--gains policy needs the policy's stiffness and damping in its layout")
    if layout.stiffness is None or gains == "robot":
        return ""
    back = [layout.joints.index(joint) for joint in robot.joint_names if joint in layout.joints]
    kp = layout.by_joint("stiffness")[back]
    kd = layout.by_joint("damping")[back]
    card_gains = np.concatenate([robot.kp_nm_per_rad, robot.kd_nms_per_rad])
    theirs = np.concatenate([kp, kd])
    if theirs.shape != card_gains.shape or np.allclose(theirs, card_gains, rtol=0.01, atol=1e-3):
        return ""
    if gains != "policy":
        raise ValueError(
            f"the policy's gains are kp {_brief(kp)}, kd {_brief(kd)}, and {robot.name}'s "
            f"kp {_brief(robot.kp_nm_per_rad)}, kd {_brief(robot.kd_nms_per_rad)}: --gains policy "
            f"writes a robot with the policy's, --gains robot keeps {robot.name}'s"
        )
    robot_folder = folder / _OWN_ROBOT
    robot_folder.mkdir()
    varied = replace(
        robot,
        name=f"{robot.name}-{folder.name}",
        path=robot_folder / CARD_FILE,
        mjcf_path=robot_folder / robot.mjcf_path.name,
        source=f"{robot.name} with the gains and default pose of the policy {folder.name}",
        kp_nm_per_rad=kp,
        kd_nms_per_rad=kd,
        default_joint_pos_rad=layout.by_joint("default_joint_pos")[back],
    )
    varied.mjcf_path.write_bytes(robot.mjcf_path.read_bytes())
    write_card(varied)
    return _OWN_ROBOT


def _brief(gains: np.ndarray) -> str:
    """One number, or those of a leg's three joints."""
    return "/".join(f"{gain:.4g}" for gain in dict.fromkeys(gains[:3].tolist()))


def _read_policy(path: Path) -> tuple[bytes, dict[str, str]]:
    """A policy's file, with weights from a file beside it, and an ONNX file's metadata."""
    if path.suffix != ".onnx":
        return path.read_bytes(), {}
    onnx = load_onnx("onnx")
    try:
        model = onnx.load(path)
    except Exception as error:  # protobuf's DecodeError, onnx's own, files that are missing
        reason = " ".join(str(error).split())
        raise ValueError(f"{path} cannot be read as ONNX: {reason}") from None
    metadata = {entry.key: entry.value for entry in model.metadata_props}
    weights = onnx.load(path, load_external_data=False).graph.initializer
    beside = any(weight.external_data for weight in weights)
    return model.SerializeToString() if beside else path.read_bytes(), metadata


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"layout {path} cannot be read as YAML: {reason}") from None
    if not isinstance(values, dict):
        raise ValueError(f"layout {path} has to hold keys, as `gaitforge expert template` prints")
    return values
