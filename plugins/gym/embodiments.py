"""Bodies of the Body Transformer's tasks: Isaac Gym's humanoid and the Adroit hand.

Source: Sferrazza et al. 2024, "Body Transformer", Appendices A and E.
"""

from gaitforge.learners.models.bodies import Body, chain_below, repeated
from gaitforge.plugins.gym.d4rl.d4rl_tasks import TASKS


def _isaacgym_humanoid() -> Body:
    """Isaac Gym's humanoid with the paper's observation (Appendix A): 16 nodes, 21 actions.

    Its 100 channels: 10 of the torso (height, root coordinates, angular velocity), positions and
    velocities of 21 joints at the limbs that they move, and a contact force (3) at every limb.
    """
    parents = {"torso": "", "head": "torso"}
    parents |= chain_below("lower_waist", "pelvis", after="torso")
    joints = ["lower_waist", "lower_waist", "pelvis"]
    for side in ("right", "left"):
        thigh, shin, foot = (f"{side}_{part}" for part in ("thigh", "shin", "foot"))
        parents |= chain_below(thigh, shin, foot, after="pelvis")
        joints += [thigh, thigh, thigh, shin, foot, foot]
    for side in ("right", "left"):
        upper, lower, hand = (f"{side}_{part}" for part in ("upper_arm", "lower_arm", "hand"))
        parents |= chain_below(upper, lower, hand, after="torso")
        joints += [upper, upper, lower]
    fields = {
        "root_state": repeated(("torso",), 10),
        "joint_pos": tuple(joints),
        "joint_vel": tuple(joints),
        "contact_force": repeated(parents, 3),
    }
    return Body(parents, fields, tuple(joints))


# The segments of each finger, one per joint, in the observation's order (joints in D4RL and
# Gymnasium-Robotics: WRJ1, WRJ0, FFJ3 … FFJ0, MFJ3 …, RFJ3 …, LFJ4 … LFJ0, THJ4 … THJ0).
_FINGER = ("knuckle", "proximal", "middle", "distal")
_FINGERS = {
    "ff": _FINGER,
    "mf": _FINGER,
    "rf": _FINGER,
    "lf": ("metacarpal", *_FINGER),
    "th": ("base", "proximal", "hub", "middle", "distal"),
}


def _adroit(task: str, arm_actions: int) -> Body:
    """The Adroit hand: 25 nodes, namely forearm (root), wrist, palm and five fingers.

    Each of the 24 hand joints moves one node; the arm's joints belong to the forearm. Tasks are the
    paper's (Appendix E) with the observations of D4RL and Gymnasium-Robotics: fields that involve
    the palm belong to the palm, fields of objects alone to the root.
    """
    parents = {"forearm": ""} | chain_below("wrist", "palm", after="forearm")
    for finger, segments in _FINGERS.items():
        parents |= chain_below(*(finger + segment for segment in segments), after="palm")
    moved = tuple(parents)[1:]
    widths = TASKS[task].obs_widths
    fields = {
        name: ("palm" if "palm" in name else "forearm",) * width for name, width in widths.items()
    }
    fields["joint_pos"] = ("forearm",) * (widths["joint_pos"] - len(moved)) + moved
    return Body(parents, fields, ("forearm",) * arm_actions + moved)


HUMANOID = _isaacgym_humanoid()
ADROIT_DOOR = _adroit("door", 4)
ADROIT_HAMMER = _adroit("hammer", 2)
ADROIT_RELOCATE = _adroit("relocate", 6)
