"""Read an MJCF of any making, without what only looks or measures."""

import xml.etree.ElementTree as ET
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
        name: of the model, or of the file if the model has none.
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
    name = path.stem if spec.modelname == mujoco.MjSpec().modelname else spec.modelname
    return Mjcf(name, model, (*poses, ("the file's own pose", model.qpos0.copy())))


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
    moving = [*spec.tendons, *spec.equalities, *others]
    if moving:
        kinds = "tendons, equalities and actuators of no joint"
        notes.decide("left out", f"{len(moving)} {kinds}", "cards know none")
    looks = [*spec.lights, *spec.cameras, *spec.materials, *spec.textures, *spec.skins]
    rest = [*spec.sensors, *spec.pairs, *spec.tuples, *spec.worldbody.geoms, *spec.hfields]
    for element in [*moving, *looks, *rest]:
        spec.delete(element)
    _strip_meshes(spec, answers, notes)


def _strip_meshes(spec: mujoco.MjSpec, answers: Answers, notes: Notes) -> None:
    """Delete shapes that only look, and colliding ones without file if the user says so."""
    files = {mesh.name: _file_of(spec, mesh) for mesh in spec.meshes}
    missing: dict[bool, set[Path]] = {True: set(), False: set()}
    for geom in spec.geoms:
        file, collides = files.get(geom.meshname), bool(geom.contype or geom.conaffinity)
        gone = file is not None and not file.is_file()
        if gone and file is not None and (collides or _weighs(spec, geom)):
            missing[collides].add(file)
        if (gone and collides) or not (collides or _weighs(spec, geom)):
            spec.delete(geom)
    if missing[False]:
        raise notes.wrong(
            f"bodies without <inertial> have their mass from meshes that are missing: "
            f"{_listed(missing[False])}"
        )
    if missing[True] and not answers.leave_out_meshes:
        raise notes.wrong(
            f"meshes of colliding shapes are missing: {_listed(missing[True])}; put them into "
            f"{min(missing[True]).parent}, or give --leave-out-meshes"
        )
    if missing[True]:
        notes.decide("meshes", f"without {_listed(missing[True])}", "--leave-out-meshes")
    used = {geom.meshname for geom in spec.geoms}
    for mesh in [mesh for mesh in spec.meshes if mesh.name not in used]:
        spec.delete(mesh)


def _listed(files: set[Path]) -> str:
    return ", ".join(sorted(file.name for file in files))


def _weighs(spec: mujoco.MjSpec, geom: mujoco.MjsGeom) -> bool:
    """Whether a body takes mass from this shape."""
    always = mujoco.mjtInertiaFromGeom.mjINERTIAFROMGEOM_TRUE
    body = geom.parent
    explicit = (
        body is not None and body.explicitinertial and spec.compiler.inertiafromgeom != always
    )
    return not explicit and geom.mass != 0 and geom.density != 0


def _file_of(spec: mujoco.MjSpec, mesh: mujoco.MjsMesh) -> Path | None:
    """A mesh's file; None for a mesh that is written into the MJCF."""
    if not mesh.file:
        return None
    file = Path(mesh.file).name if spec.strippath else mesh.file
    return Path(spec.modelfiledir, spec.meshdir, file)
