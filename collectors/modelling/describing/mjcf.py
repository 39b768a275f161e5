"""Read any MJCF or URDF, without visual shapes and sensors."""

import re
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import mujoco
import numpy as np

from gaitforge.collectors.modelling.describing.inertias import check_inertias
from gaitforge.collectors.modelling.describing.notes import Notes
from gaitforge.common.errors import failures

_NARROW_RAD = 0.1
_WIDE_RAD = 4 * np.pi
_UNREAD = (".dae", ".glb", ".gltf", ".fbx", ".ply")
"""Mesh files that URDFs may name and MuJoCo cannot read."""
_SHOWN = 8
_JOINT_ACTUATORS = (mujoco.mjtTrn.mjTRN_JOINT, mujoco.mjtTrn.mjTRN_JOINTINPARENT)


@dataclass(frozen=True)
class Mjcf:
    """A compiled MJCF or URDF.

    Attributes:
        name: of the model, or of the file if the model has none.
        poses: (name, qpos) of its key frames, `home` first, then of the model's initial pose.
    """

    name: str
    model: mujoco.MjModel
    poses: tuple[tuple[str, np.ndarray], ...]


def read_mjcf(path: Path, notes: Notes) -> Mjcf:
    """Read and compile an MJCF or URDF; mesh files of shapes that do not collide may be missing.

    RobotError for another kind of file, one that does not compile, or a missing mesh that collides.
    """
    path = path.absolute()
    _check_kind(path, notes)
    try:
        spec = mujoco.MjSpec.from_file(str(path))
        # A URDF's root link is fixed to the world: fused with it, it would be no body.
        spec.compiler.fusestatic = False
        folders = _folders(path, path.parent)
        files = dict[str, Path]()
        for mesh in [mesh for mesh in spec.meshes if mesh.file]:
            files[mesh.name] = _find_mesh(mesh, folders, spec.strippath)
            if "://" in mesh.file:
                mesh.file = str(files[mesh.name])
        _strip(spec, files, notes)
        check_inertias(spec, notes)
        model = spec.compile()
    except (ValueError, mujoco.FatalError, ET.ParseError) as error:
        if str(error).startswith(f"{notes.file}: "):
            raise
        raise notes.wrong(_one_line(error)) from None
    ranged = (model.jnt_type == mujoco.mjtJoint.mjJNT_HINGE) & (model.jnt_limited == 1)
    ends = np.abs(model.jnt_range[ranged]).max(axis=1)
    if ranged.any() and (ends.max() < _NARROW_RAD or ends.min() > _WIDE_RAD):
        raise notes.wrong(
            f"its joints turn by {ends.min():.3g} to {ends.max():.3g} rad: degrees and radians are "
            'mixed up; <compiler angle="radian"/> or "degree" has to say what its angles are'
        )
    keys = [(model.key(k).name or f"key {k}", model.key_qpos[k].copy()) for k in range(model.nkey)]
    keys.sort(key=lambda key: key[0] != "home")
    poses = [(f"key frame '{name}'", qpos) for name, qpos in keys]
    name = path.stem if spec.modelname == mujoco.MjSpec().modelname else spec.modelname
    return Mjcf(name, model, (*poses, ("the file's own pose", model.qpos0.copy())))


def _one_line(error: BaseException) -> str:
    """MuJoCo's error with the element that it names in a line of its own."""
    message, *lines = str(error).strip().split("\n")
    elements = [line.strip() for line in lines if line.strip().startswith("Element")]
    return f"{message} ({elements[0]})" if elements else message


def _check_kind(path: Path, notes: Notes) -> None:
    kinds = OSError, ET.ParseError, UnicodeError
    with failures("it cannot be read as XML", *kinds, error=notes.wrong):
        root = _root(path)
    if root.tag not in ("mujoco", "mujocoinclude", "robot"):
        raise notes.wrong(f"it is no MJCF or URDF: its root is <{root.tag}>, not <mujoco>, <robot>")
    if any("xacro" in element.tag for element in root.iter()):
        raise notes.wrong("it is a xacro file; make its URDF first: xacro FILE > robot.urdf")
    if visuals := list(root.iterfind("link/visual")):
        notes.decide("left out", f"{len(visuals)} visual shapes", "they do not collide")
    meshes = root.iterfind("link/collision/geometry/mesh")
    files = sorted(
        (Path(file).stem, file) for file in {mesh.get("filename", "") for mesh in meshes}
    )
    for (stem, file), (other_stem, other_file) in pairwise(files):
        if stem == other_stem:
            raise notes.wrong(
                f"MuJoCo takes {file} and {other_file} for one mesh; rename one of them"
            )


def _root(path: Path) -> ET.Element:
    """An XML file's root; MuJoCo allows `--` in comments, which XML does not."""
    return ET.fromstring(re.sub(rb"<!--.*?-->", b"", path.read_bytes(), flags=re.DOTALL))


def _folders(path: Path, start: Path) -> list[Path]:
    """Folders of an MJCF and of the models that it attaches: MuJoCo reads meshes from each's own.

    Names are relative to the file that holds them, or to the folder `start` of the model's file.
    """
    folders = [path.parent]
    for element in [node for node in _root(path).iter() if node.tag in ("model", "include")]:
        places = [folder / element.get("file", "") for folder in (path.parent, start)]
        for file in [candidate for candidate in places if candidate.is_file()][:1]:
            folders += _folders(file, file.parent if element.tag == "model" else start)
    return folders


def _find_mesh(mesh: mujoco.MjsMesh, folders: list[Path], strippath: bool) -> Path:
    """Path of a mesh's file, whether it exists or not.

    A URDF's package:// is the nearest folder of that name beside or above the URDF, or else any
    folder above it.
    """
    scheme, _, file = mesh.file.rpartition("://")
    if scheme in ("", "file"):
        name = Path(file).name if strippath else file
        places = [Path(folder, mesh.compiler.meshdir, name) for folder in folders]
    else:
        inside = file.partition("/")[2]
        above = [folders[0], *folders[0].parents]
        places = [folder / relative for relative in (file, inside) for folder in above]
    return next((candidate for candidate in places if candidate.is_file()), places[0])


def _strip(spec: mujoco.MjSpec, files: dict[str, Path], notes: Notes) -> None:
    """Delete what needs files or is not used; shapes in contact pairs count as colliding."""
    paired = {name for pair in spec.pairs for name in (pair.geomname1, pair.geomname2)}
    for geom in spec.geoms:
        geom.material = ""
        if geom.name in paired:
            geom.contype = 1
    for element in [*spec.sites, *spec.tendons]:
        element.material = ""
    actuators = [
        actuator for actuator in spec.actuators if actuator.trntype not in _JOINT_ACTUATORS
    ]
    couplings = [
        equality for equality in spec.equalities if equality.type == mujoco.mjtEq.mjEQ_JOINT
    ]
    moving = [*spec.tendons, *spec.equalities, *actuators]
    if couplings:
        _note_couplings(couplings, notes)
    if dropped := [item for item in moving if item not in couplings]:
        names = _listed_names([item.name for item in dropped])
        kinds = f"tendons, equalities and actuators of no joint{names}"
        notes.decide("left out", f"{len(dropped)} {kinds}", "cards know none")
    looks = [*spec.lights, *spec.cameras, *spec.materials, *spec.textures, *spec.skins]
    scene = [geom for geom in spec.geoms if geom.hfieldname or geom.parent.name == "world"]
    unused = [*spec.sensors, *spec.pairs, *spec.tuples, *scene, *spec.hfields]
    for element in [*moving, *looks, *unused]:
        spec.delete(element)
    for key in spec.keys:
        key.ctrl = key.act = []  # their actuators are deleted, too
    _strip_meshes(spec, files, notes)


def _note_couplings(couplings: list[mujoco.MjsEquality], notes: Notes) -> None:
    """Name the joints that follow others: <mimic> in a URDF, equalities of joints in an MJCF."""
    pairs: list[str] = []
    for coupling in couplings:
        offset = float(coupling.data[0])
        factor = float(coupling.data[1])
        follows = (
            f"{coupling.name1} follows {coupling.name2}"
            if coupling.name2
            else f"{coupling.name1} is held"
        )
        rule = [f"x {factor:g}"] if factor != 1 and coupling.name2 else []
        rule += [f"+ {offset:g}"] if offset else []
        pairs.append(" ".join([follows, *rule]))
    kept = "the coupling is not kept: each of these joints has a motor of its own"
    text = f"mimic joints: {', '.join(pairs)}: {kept}"
    notes.decide("caution", text, "a card has 12 joints with a motor each")


def _listed_names(names: list[str]) -> str:
    named = [name for name in names if name]
    return f" ({', '.join(named[:_SHOWN])}{', …' * (len(named) > _SHOWN)})" if named else ""


def _strip_meshes(spec: mujoco.MjSpec, files: dict[str, Path], notes: Notes) -> None:
    """Delete visual shapes, and colliding ones without a file if the user says so."""
    missing: dict[bool, set[Path]] = {True: set(), False: set()}
    for geom in spec.geoms:
        file = files.get(geom.meshname)
        collides = bool(geom.contype or geom.conaffinity)
        gone = file is not None and (not file.is_file() or file.suffix.lower() in _UNREAD)
        if gone and file is not None and (collides or _weighs(spec, geom)):
            missing[collides].add(file)
        if (gone and collides) or not (collides or _weighs(spec, geom)):
            spec.delete(geom)
    if missing[False]:
        raise notes.wrong(
            f"bodies without <inertial> have their mass from meshes that are missing: "
            f"{_listed(missing[False])}"
        )
    if missing[True] and not notes.answers.leave_out_meshes:
        raise notes.wrong(
            "meshes of colliding shapes are missing, or of a kind that MuJoCo does not read: "
            f"{_listed(missing[True])}; put STL or OBJ files into {min(missing[True]).parent}, "
            "or give --leave-out-meshes"
        )
    if missing[True]:
        notes.decide("meshes", f"without {_listed(missing[True])}", "--leave-out-meshes")
    used = {geom.meshname for geom in spec.geoms}
    for mesh in [mesh for mesh in spec.meshes if mesh.name not in used]:
        spec.delete(mesh)


def _listed(files: set[Path]) -> str:
    return ", ".join(sorted(file.name for file in files))


def _weighs(spec: mujoco.MjSpec, geom: mujoco.MjsGeom) -> bool:
    """Whether this shape adds to its body's mass."""
    always = mujoco.mjtInertiaFromGeom.mjINERTIAFROMGEOM_TRUE
    body = geom.parent
    explicit = (
        body is not None and body.explicitinertial and spec.compiler.inertiafromgeom != always
    )
    return not explicit and geom.mass != 0 and geom.density != 0
