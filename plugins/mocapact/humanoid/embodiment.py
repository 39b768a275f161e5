"""The CMU humanoid as a body of the Body Transformer (Sferrazza et al. 2024)."""

from gaitforge.learners.models.bodies import Body, chain_below, repeated


def _cmu_humanoid() -> Body:
    """dm_control's CMU humanoid of 2020 with the observation of BoT's MoCapAct task.

    32 nodes in the order of the paper's table. The observation has 1,294 of MoCapAct's 2,868
    channels: 13 of its 35 fields, in alphabetical order as in the data files. Names are those of
    dm_control's model (Apache-2.0): joints and actuators in alphabetical order, references as
    (5 steps, 31 bodies, 3 or 4), bodies in node order without the root. The number of channels at
    each node equals the published one.
    """
    parents = {"root": ""}
    for side in "lr":
        leg = (f"{side}{part}" for part in ("hipjoint", "femur", "tibia", "foot", "toes"))
        parents |= chain_below(*leg, after="root")
    spine = ("lowerback", "upperback", "thorax", "lowerneck", "upperneck", "head", "face")
    parents |= chain_below(*spine, after="root")
    for side in "lr":
        arm = (f"{side}{part}" for part in ("clavicle", "humerus", "radius", "wrist", "hand"))
        parents |= chain_below(*arm, after="thorax")
        parents |= {f"{side}fingers": f"{side}hand", f"{side}thumb": f"{side}hand"}

    limb_axes = {
        "femur": "xyz", "tibia": "x", "foot": "xz", "toes": "x", "clavicle": "yz",
        "humerus": "xyz", "radius": "x", "wrist": "y", "hand": "xz", "fingers": "x", "thumb": "xz",
    }  # fmt: skip
    axes = {f"{side}{part}": letters for side in "lr" for part, letters in limb_axes.items()}
    axes |= dict.fromkeys(spine[:-1], "xyz")
    joints = tuple(node for node in sorted(axes) for _ in axes[node])

    touch = ("lhand", "lfingers", "lthumb", "rhand", "rfingers", "rthumb")
    touch += ("ltoes", "rtoes", "rfoot", "lfoot")
    referenced = tuple(parents)[1:]
    reference_steps = 5
    fields = {
        "actuator_activation": joints,
        "body_height": ("root",),
        "end_effectors_pos": repeated(("rradius", "lradius", "rfoot", "lfoot"), 3),
        "gyro_control": repeated(("root",), 3),
        "joints_pos": joints,
        "joints_vel": joints,
        "reference_rel_bodies_pos_local": repeated(referenced, 3) * reference_steps,
        "reference_rel_bodies_quats": repeated(referenced, 4) * reference_steps,
        "sensors_gyro": repeated(("root",), 3),
        "sensors_torque": repeated(("lhumerus", "rhumerus"), 3),
        "sensors_touch": touch,
        "sensors_velocimeter": repeated(("root",), 3),
        "world_zaxis": repeated(("root",), 3),
    }
    return Body(parents, fields, joints)


CMU_HUMANOID = _cmu_humanoid()
