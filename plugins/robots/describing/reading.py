"""Read any MJCF or URDF without visual shapes and sensors, and check the inertias it states."""

import re
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import mujoco
import numpy as np

from gaitforge.common.errors import failures
from gaitforge.plugins.robots.describing.notes import Notes

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
            files[_mesh_name(mesh)] = _find_mesh(mesh, folders, spec.strippath)
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
    if not path.exists():
        raise notes.wrong("there is no such file")
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


def _mesh_name(mesh: Any) -> str:
    """Name of a mesh; an unnamed one has its file's, which MuJoCo fills in from 3.16 on."""
    return mesh.name or Path(mesh.file).stem


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
            f"{_file_names(missing[False])}"
        )
    if missing[True] and not notes.answers.leave_out_meshes:
        raise notes.wrong(
            "meshes of colliding shapes are missing, or of a kind that MuJoCo does not read: "
            f"{_file_names(missing[True])}; put STL or OBJ files into {min(missing[True]).parent}, "
            "or give --leave-out-meshes"
        )
    if missing[True]:
        notes.decide("meshes", f"without {_file_names(missing[True])}", "--leave-out-meshes")
    used = {geom.meshname for geom in spec.geoms}
    for mesh in [mesh for mesh in spec.meshes if _mesh_name(mesh) not in used]:
        spec.delete(mesh)


def _file_names(files: set[Path]) -> str:
    return ", ".join(sorted(file.name for file in files))


def _weighs(spec: mujoco.MjSpec, geom: mujoco.MjsGeom) -> bool:
    """Whether this shape adds to its body's mass."""
    always = mujoco.mjtInertiaFromGeom.mjINERTIAFROMGEOM_TRUE
    body = geom.parent
    explicit = (
        body is not None and body.explicitinertial and spec.compiler.inertiafromgeom != always
    )
    return not explicit and geom.mass != 0 and geom.density != 0


_TOLERANCE = 1e-3
"""Relative error of a stated tensor, as files round it."""

_REFUSED_ABOVE = 300.0
_REFUSED_BELOW = 1 / 3000
_NOTED_BELOW = 1 / 300
"""Largest moment over that of a solid box. Where colliding shapes cover a part of a link only, it
reaches about 50; kg cm2 taken for kg m2 make it 10,000."""

_LEAST_SIZE_M = 0.005
_LEAST_MASS_KG = 0.005
_MOST_DENSITY = 1e5
"""kg/m3 of a link's box; tungsten has 19,300, and shapes may be smaller than the link."""

_SLIPS = {
    1e3: "are masses or inertias in g and g m2?",
    1e4: "is it in kg cm2? divide by 1e4",
    1e6: "is it in kg mm2? divide by 1e6",
    1e9: "is it in g mm2? divide by 1e9",
    1e-3: "was it divided by 1e3 once too often, or is the mass in g?",
    1e-4: "was it converted from kg cm2 twice? multiply by 1e4",
    1e-6: "was it converted from kg mm2 twice? multiply by 1e6",
    1e-9: "was it converted from g mm2 twice? multiply by 1e9",
}
"""A moment over the box's -> the likely slip of units."""

_SHOWN_LINKS = 4


@dataclass(frozen=True)
class _Link:
    """A body with a stated inertia: kg, m and kg m2.

    Attributes:
        moments: (3,) principal moments, ascending. box: (3,) moments of a solid box of its mass
            and `size_m` (3,), zeros if nothing tells the size.
        moves: whether it has joints; others are fixed to it.
    """

    name: str
    mass: float
    size_m: np.ndarray
    moments: np.ndarray
    box: np.ndarray
    moves: bool

    @property
    def ratio(self) -> float:
        """Largest moment over the box's; 1 if the size or mass is too small to say."""
        if self.mass < _LEAST_MASS_KG or self.size_m.max() < _LEAST_SIZE_M or not self.moves:
            return 1.0
        return float(self.moments[2] / self.box.max())

    @property
    def is_impossible(self) -> bool:
        """Whether no body has these moments: one below 0, or larger than the others' sum."""
        low, middle, high = self.moments
        slack = _TOLERANCE * np.abs(self.moments).max()
        return bool(low < -slack or low + middle < high - slack)

    def as_box(self) -> str:
        """The box in words."""
        size = " x ".join(f"{length:.3g}" for length in self.size_m)
        x, y, z = self.box
        moments = f"ixx {x:.2g}, iyy {y:.2g}, izz {z:.2g}"
        return f"a box of its {self.mass:.3g} kg and {size} m has {moments}"


def check_inertias(spec: mujoco.MjSpec, notes: Notes) -> None:
    """Refuse impossible inertias and slips of units, by the links' names; note what is odd.

    RobotError gives the inertia of a box of the link's mass and size, to write into the file.
    """
    links = _links(spec)
    impossible = [link for link in links if link.is_impossible]
    balanced = [link for link in impossible if spec.compiler.balanceinertia and link.moments[0] > 0]
    if balanced:
        names = _link_names([link.name for link in balanced])
        notes.decide("inertia", f"of {names}: equal moments, their mean", "balanceinertia")
    if refused := [link for link in impossible if link not in balanced]:
        raise notes.wrong(_impossible(refused))
    wrong = [link for link in links if not _REFUSED_BELOW < link.ratio < _REFUSED_ABOVE]
    if wrong:
        raise notes.wrong(f"{_compared(wrong)}; {wrong[0].as_box()} kg m2")
    if small := [link for link in links if link.ratio < _NOTED_BELOW]:
        notes.decide("caution", _compared(small), "inertia beside mass and size")
    if dense := [link for link in links if _density(link) > _MOST_DENSITY]:
        names = _link_names([link.name for link in dense])
        text = f"mass of {names}: {_density(dense[0]):.2g} kg/m3; is it in g?"
        notes.decide("caution", text, "mass beside size")


def _impossible(links: list[_Link]) -> str:
    moments = ", ".join(f"{moment:.3g}" for moment in links[0].moments)
    remedy = f"write what {links[0].as_box()} kg m2" if links[0].box.any() else "mend <inertia>"
    names = [link.name for link in links[1:]]
    also = f"; the same of {_link_names(names)}" if names else ""
    small = links[0].moments[0] > 0
    balance = "; or <compiler balanceinertia> makes the three moments equal" if small else ""
    return (
        f"link {links[0].name} has an impossible inertia, principal moments {moments} kg m2: none "
        f"may be negative or larger than the sum of the others; {remedy}{balance}{also}"
    )


def _compared(links: list[_Link]) -> str:
    first = links[0]
    factor = f"{first.ratio:.0e} times" if first.ratio > 1 else f"1/{1 / first.ratio:.0e} of"
    nearest = min(_SLIPS, key=lambda slip: abs(np.log10(first.ratio / slip)))
    return (
        f"inertia of {_link_names([link.name for link in links])}: {first.moments[2]:.3g} kg m2 is "
        f"{factor} that of a box of its mass and size; {_SLIPS[nearest]}"
    )


def _density(link: _Link) -> float:
    """kg/m3 of the link's box; 0 where its size is not known in all directions."""
    thin = link.size_m.min() < _LEAST_SIZE_M or not link.moves
    return 0.0 if thin else link.mass / float(np.prod(link.size_m))


def _links(spec: mujoco.MjSpec) -> list[_Link]:
    stated = [body.explicitinertial and body.mass > 0 for body in spec.bodies]
    if not any(stated):
        return []
    links: list[_Link] = []
    for body, size, has_inertia in zip(spec.bodies, _sizes(spec), stated, strict=True):
        if not has_inertia:
            continue
        tensor = np.diag(body.inertia)
        full = np.array(body.fullinertia)
        if np.isfinite(full).all() and full.any():
            xx, yy, zz, xy, xz, yz = full
            tensor = np.array([[xx, xy, xz], [xy, yy, yz], [xz, yz, zz]])
        squares = np.square(size)
        box = body.mass / 12 * (squares.sum() - squares)
        moments = np.linalg.eigvalsh(tensor)
        moves = bool(body.joints) or body.parent.name == "world"
        links.append(_Link(body.name, float(body.mass), size, moments, box, moves))
    return links


def _sizes(spec: mujoco.MjSpec) -> list[np.ndarray]:
    """(3,) extents of each body's shapes and of the joints of what hangs on it, m."""
    copy = _with_harmless_inertias(spec)
    model = copy.compile()
    sizes: list[np.ndarray] = []
    corners = np.array(list(product((-1.0, 1.0), repeat=3)))
    for body in [element.id for element in copy.bodies]:  # known since it was compiled
        points = [np.zeros((1, 3)), model.body_pos[model.body_parentid == body]]
        for geom in np.flatnonzero(model.geom_bodyid == body):
            center, half = np.split(model.geom_aabb[geom], 2)
            turn = np.zeros(9)
            mujoco.mju_quat2Mat(turn, model.geom_quat[geom])
            box = (center + corners * half) @ turn.reshape(3, 3).T
            points.append(box + model.geom_pos[geom])
        sizes.append(np.ptp(np.concatenate(points), axis=0))
    return sizes


def _with_harmless_inertias(spec: mujoco.MjSpec) -> mujoco.MjSpec:
    """A copy that compiles, whatever inertias the file states."""
    copy = spec.copy()
    for body in copy.bodies:
        if body.explicitinertial:
            body.fullinertia = [np.nan, 0, 0, 0, 0, 0]
            body.inertia = [max(body.mass, 1e-6)] * 3
    return copy


def _link_names(names: list[str]) -> str:
    shown = ", ".join(names[:_SHOWN_LINKS])
    hidden = len(names) - _SHOWN_LINKS
    return f"{shown} and {hidden} more" if hidden > 0 else shown
