"""Plain values of `gymapi`: enumerations, vectors and parameters, with Isaac Gym's defaults."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np


class GymMisuse(RuntimeError):
    """A call that Isaac Gym forbids, or one whose result nobody should rely on."""


class SimType(IntEnum):
    """Physics engine."""

    SIM_PHYSX = 0
    SIM_FLEX = 1


class UpAxis(IntEnum):
    """Which axis points up."""

    UP_AXIS_Y = 0
    UP_AXIS_Z = 1


class ContactCollection(IntEnum):
    """Over which substeps contact forces are summed."""

    CC_NEVER = 0
    CC_LAST_SUBSTEP = 1
    CC_ALL_SUBSTEPS = 2


class DofDriveMode(IntEnum):
    """What a joint obeys."""

    DOF_MODE_NONE = 0
    DOF_MODE_POS = 1
    DOF_MODE_VEL = 2
    DOF_MODE_EFFORT = 3


class IndexDomain(IntEnum):
    """Within what an index counts."""

    DOMAIN_ACTOR = 0
    DOMAIN_ENV = 1
    DOMAIN_SIM = 2


class TensorDataType(IntEnum):
    """Types of numbers in tensors; signed integers travel as unsigned ones."""

    DTYPE_FLOAT32 = 0
    DTYPE_UINT32 = 1
    DTYPE_UINT64 = 2
    DTYPE_UINT8 = 3
    DTYPE_INT16 = 4


DOF_DTYPE = np.dtype(
    [
        ("hasLimits", "?"),
        ("lower", "<f4"),
        ("upper", "<f4"),
        ("driveMode", "<i4"),
        ("velocity", "<f4"),
        ("effort", "<f4"),
        ("stiffness", "<f4"),
        ("damping", "<f4"),
        ("friction", "<f4"),
        ("armature", "<f4"),
    ]
)


@dataclass(slots=True)
class Vec3:
    """x, y, z."""

    x: float = 0.0
    y: float = 0.0
    z: float = 0.0


@dataclass(slots=True)
class Quat:
    """x, y, z, w: the scalar last."""

    x: float = 0.0
    y: float = 0.0
    z: float = 0.0
    w: float = 1.0


@dataclass(slots=True)
class Transform:
    """A position and an orientation."""

    p: Vec3 = field(default_factory=Vec3)
    r: Quat = field(default_factory=Quat)


@dataclass(slots=True)
class Mat33:
    """Rows of a matrix."""

    x: Vec3 = field(default_factory=Vec3)
    y: Vec3 = field(default_factory=Vec3)
    z: Vec3 = field(default_factory=Vec3)


@dataclass(slots=True)
class Version:
    """1.0 in every preview."""

    major: int = 1
    minor: int = 0


@dataclass(slots=True)
class PhysXParams:
    """The engine's settings; the double takes heed of threads and of contact collection."""

    always_use_articulations: bool = False
    bounce_threshold_velocity: float = 0.2
    contact_collection: ContactCollection = ContactCollection.CC_ALL_SUBSTEPS
    contact_offset: float = 0.02
    default_buffer_size_multiplier: float = 2.0
    friction_correlation_distance: float = 0.025
    friction_offset_threshold: float = 0.04
    max_depenetration_velocity: float = 100.0
    max_gpu_contact_pairs: int = 1024 * 1024
    num_position_iterations: int = 4
    num_subscenes: int = 0
    num_threads: int = 0
    num_velocity_iterations: int = 1
    rest_offset: float = 0.001
    solver_type: int = 1
    use_gpu: bool = False


@dataclass(slots=True)
class SimParams:
    """One `simulate` is dt seconds in `substeps` steps."""

    dt: float = 1 / 60
    enable_actor_creation_warning: bool = True
    gravity: Vec3 = field(default_factory=lambda: Vec3(0.0, -9.8, 0.0))
    num_client_threads: int = 0
    physx: PhysXParams = field(default_factory=PhysXParams)
    substeps: int = 2
    up_axis: UpAxis = UpAxis.UP_AXIS_Y
    use_gpu_pipeline: bool = False


@dataclass(slots=True)
class AssetOptions:
    """How an asset is imported."""

    angular_damping: float = 0.5
    armature: float = 0.0
    collapse_fixed_joints: bool = False
    default_dof_drive_mode: int = 0
    density: float = 1000.0
    disable_gravity: bool = False
    enable_gyroscopic_forces: bool = True
    fix_base_link: bool = False
    flip_visual_attachments: bool = False
    linear_damping: float = 0.0
    max_angular_velocity: float = 64.0
    max_linear_velocity: float = 1000.0
    override_com: bool = False
    override_inertia: bool = False
    replace_cylinder_with_capsule: bool = False
    slices_per_cylinder: int = 20
    thickness: float = 0.02
    use_mesh_materials: bool = False
    use_physx_armature: bool = True
    vhacd_enabled: bool = False


@dataclass(slots=True)
class PlaneParams:
    """A global ground plane."""

    distance: float = 0.0
    dynamic_friction: float = 1.0
    normal: Vec3 = field(default_factory=lambda: Vec3(0.0, 1.0, 0.0))
    restitution: float = 0.0
    segmentation_id: int = 0
    static_friction: float = 1.0


@dataclass(slots=True)
class TriangleMeshParams:
    """A global ground of triangles."""

    dynamic_friction: float = 1.0
    nb_triangles: int = 0
    nb_vertices: int = 0
    restitution: float = 0.0
    segmentation_id: int = 0
    static_friction: float = 1.0
    transform: Transform = field(default_factory=Transform)


@dataclass(slots=True)
class RigidShapeProperties:
    """Material and collision filter of one shape."""

    compliance: float = 0.0
    contact_offset: float = 0.02
    filter: int = 0
    friction: float = 1.0
    rest_offset: float = 0.0
    restitution: float = 0.0
    rolling_friction: float = 0.0
    thickness: float = 0.0
    torsion_friction: float = 0.0


@dataclass(slots=True)
class RigidBodyProperties:
    """Mass in kg, centre of mass in the body's frame, inertia about it in the body's axes."""

    com: Vec3 = field(default_factory=Vec3)
    flags: int = 0
    inertia: Mat33 = field(default_factory=Mat33)
    invInertia: Mat33 = field(default_factory=Mat33)
    invMass: float = 0.0
    mass: float = 0.0


@dataclass(slots=True)
class IndexRange:
    """`count` numbers from `start`."""

    start: int = 0
    count: int = 0


class Tensor:
    """What Isaac Gym knows of a tensor: where its numbers lie, and what they are.

    The double reads and writes them through `array`, which shares their memory.
    """

    def __init__(self) -> None:
        self.data_address = 0
        self.device = -1
        self.dtype = TensorDataType.DTYPE_FLOAT32
        self.own_data = False
        self.shape: tuple[int, ...] = ()
        self.array: np.ndarray = np.zeros(0, np.float32)

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @classmethod
    def of(cls, array: np.ndarray, dtype: TensorDataType) -> Tensor:
        """The tensor over an array's memory."""
        tensor = cls()
        tensor.data_address = array.ctypes.data
        tensor.dtype, tensor.shape, tensor.array = dtype, array.shape, array
        return tensor
