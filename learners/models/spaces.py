"""Named token layouts and action sizes, used to count the parameters of presets."""

from dataclasses import dataclass

from gaitforge.datasets.schema import consecutive_slices
from gaitforge.learners.models.bodies import BODIES
from gaitforge.learners.tokens import TokenLayout

OBS_SLICES = consecutive_slices(
    {
        "projected_gravity": 3,
        "joint_vel": 12,
        "sin_joint_pos": 12,
        "cos_joint_pos": 12,
        "base_ang_vel_body": 3,
        "last_action": 12,
        "command": 16,
    }
)
"""Name -> (start, stop) in the observation of the legged task, in the order of FCNet's paper."""


@dataclass(frozen=True)
class Space:
    """A token layout and the size of an action."""

    layout: TokenLayout
    act_dim: int


def _d4rl(state_dim: int, act_dim: int) -> Space:
    """The space of a D4RL-MuJoCo task (Fu et al. 2020), with return tokens (a, R, s)."""
    slices = {"state": (0, state_dim), "last_action": (state_dim, state_dim + act_dim)}
    return Space(TokenLayout("return", slices), act_dim)


def _body(name: str) -> Space:
    """The space of a body of the Body Transformer's imitation tasks, with that body's fields."""
    return Space(TokenLayout("obs", BODIES[name].slices), BODIES[name].act_dim)


_SPACE_OF = {"cmu-humanoid": "mocapact"}
SPACES: dict[str, Space] = {
    "legged": Space(TokenLayout("obs", OBS_SLICES), act_dim=12),
    "legged-return": Space(TokenLayout("return", OBS_SLICES), act_dim=12),
    "d4rl-hopper": _d4rl(11, 3),
    "d4rl-halfcheetah": _d4rl(17, 6),
    "d4rl-walker2d": _d4rl(17, 6),
    **{_SPACE_OF.get(body, body): _body(body) for body in BODIES},
}
