"""Read an MJCF of any making, without what only looks or measures."""

import xml.etree.ElementTree as ET
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import mujoco
import numpy as np

from collectors.modelling.describing.notes import Answers, Notes

_JOINT_ACTUATORS = (mujoco.mjtTrn.mjTRN_JOINT, mujoco.mjtTrn.mjTRN_JOINTINPARENT)


@dataclass(frozen=True)
class Mjcf:
    """A compiled MJCF.

    Attributes:
        name: of the model.
        poses: (name, qpos) of its key frames, `home` first, and of its own pose.
    """

    name: str
    model: mujoco.MjModel
    poses: tuple[tuple[str, np.ndarray], ...]


def read_mjcf(path: Path, answers: Answers, notes: Notes) -> Mjcf:
    """Read and compile an MJCF; files of shapes that do not collide need not be there.

    RobotError for a file that is no MJCF, does not compile, or lacks a mesh that is needed.
    """
    _check_kind(path, notes)
    try:
        spec = mujoco.MjSpec.from_file(str(path))
        _strip(spec, answers, notes)
        model = spec.compile()
    except (ValueError, mujoco.FatalError) as error:
        if str(error).startswith(f"{notes.file}: "):
            raise
        raise notes.wrong(str(error).strip().split("\n")[0]) from None
    keys = [(model.key(k).name or f"key {k}", model.key_qpos[k].copy()) for k in range(model.nkey)]
    keys.sort(key=lambda key: key[0] != "home")
    poses = [(f"key frame '{name}'", qpos) for name, qpos in keys]
    return Mjcf(spec.modelname, model, (*poses, ("the file's own pose", model.qpos0.copy())))


def _check_kind(path: Path, notes: Notes) -> None:
    try:
        root = ET.parse(path).getroot().tag
    except (OSError, ET.ParseError, UnicodeError) as error:
        raise notes.wrong(f"it cannot be read as XML: {error}") from None
    if root == "robot":
        raise notes.wrong(
            "it is a URDF; open it with MuJoCo and save it as MJCF: "
            "mujoco.MjSpec.from_file(...).to_file(...)"
        )
    if root not in ("mujoco", "mujocoinclude"):
        raise notes.wrong(f"it is no MJCF: its root is <{root}>, not <mujoco>")


def _strip(spec: mujoco.MjSpec, answers: Answers, notes: Notes) -> None:
    """Delete what needs files or is not used; shapes in contact pairs count as colliding."""
    paired = {name for pair in spec.pairs for name in (pair.geomname1, pair.geomname2)}
    for geom in spec.geoms:
        geom.material = ""
        if geom.name in paired:
            geom.contype = 1
    for element in [*spec.sites, *spec.tendons]:
        element.material = ""
    others = [each for each in spec.actuators if each.trntype not in _JOINT_ACTUATORS]
    left_out = {
        "sensors": list(spec.sensors),
        "tendons": list(spec.tendons),
        "equalities": list(spec.equalities),
        "actuators of no joint": others,
        "lights": list(spec.lights),
        "cameras": list(spec.cameras),
        "materials": list(spec.materials),
        "textures": list(spec.textures),
    }
    unnamed = [*spec.pairs, *spec.tuples, *spec.skins, *spec.worldbody.geoms, *spec.hfields]
    for element in [*(each for group in left_out.values() for each in group), *unnamed]:
        spec.delete(element)
    _strip_meshes(spec, answers, notes)
    counts = {what: len(group) for what, group in left_out.items() if group}
    if counts:
        listed = ", ".join(f"{count} {what}" for what, count in counts.items())
        notes.decide("left out", listed, "a card needs none")


def _strip_meshes(spec: mujoco.MjSpec, answers: Answers, notes: Notes) -> None:
    """Delete shapes that only look, and colliding ones without file if the user says so."""
    meshes = {mesh.name: mesh for mesh in spec.meshes}
    counted, missing, weighing = Counter[str](), set[str](), set[str]()
    for geom in spec.geoms:
        file = _file_of(spec, meshes[geom.meshname]) if geom.meshname in meshes else None
        gone = file is not None and not file.is_file()
        if geom.contype or geom.conaffinity:
            if gone and file is not None:
                missing.add(file.name)
        elif not _weighs(spec, geom):
            counted["visual"] += 1
            spec.delete(geom)
            continue
        elif gone and file is not None:
            weighing.add(file.name)
        if gone and answers.leave_out_meshes:
            counted["colliding"] += 1
            spec.delete(geom)
    if weighing:
        raise notes.wrong(
            f"bodies without <inertial> take their mass from meshes that are missing: "
            f"{', '.join(sorted(weighing))}"
        )
    if missing and not answers.leave_out_meshes:
        raise notes.wrong(
            f"meshes of colliding shapes are missing: {', '.join(sorted(missing))}; put them "
            f"into {_file_of(spec, spec.meshes[0]).parent}, or give --leave-out-meshes"
        )
    used = {geom.meshname for geom in spec.geoms}
    for mesh in [mesh for mesh in spec.meshes if mesh.name not in used]:
        spec.delete(mesh)
    if counted["visual"]:
        notes.decide("visual shapes", f"{counted['visual']} left out", "they do not collide")
    if counted["colliding"]:
        text = f"{counted['colliding']} left out: {', '.join(sorted(missing))}"
        notes.decide("meshes", text, "--leave-out-meshes")


def _weighs(spec: mujoco.MjSpec, geom: mujoco.MjsGeom) -> bool:
    """Whether a body takes mass from this shape."""
    always = mujoco.mjtInertiaFromGeom.mjINERTIAFROMGEOM_TRUE
    explicit = geom.parent.explicitinertial and spec.compiler.inertiafromgeom != always
    return not explicit and geom.mass != 0 and geom.density != 0


def _file_of(spec: mujoco.MjSpec, mesh: mujoco.MjsMesh) -> Path | None:
    """A mesh's file; None for a mesh that is written into the MJCF."""
    if not mesh.file:
        return None
    file = Path(mesh.file).name if spec.strippath else mesh.file
    return Path(spec.modelfiledir, spec.meshdir, file)
