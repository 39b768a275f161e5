"""A policy's C files as text: what `policy.h`, `policy.c` and the weights hold."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from zlib import crc32

import numpy as np

from gaitforge.collectors.legged.observations import POLICY_SLICES
from gaitforge.collectors.robots.kinematics import COMMAND_NAMES
from gaitforge.collectors.timing import EPISODE_STEPS
from gaitforge.learners.control.control import StepProgram
from gaitforge.learners.export.description import RobotFacts
from gaitforge.learners.models.base import BoundedNetwork
from gaitforge.learners.policy_network import PolicyNetwork
from gaitforge.learners.tokens import BODY_SIGN, LAST_ACTION, RETURN_TO_GO
from gaitforge.plugins.robot_runtime.c_code.answers import (
    Answers,
    episode_steps,
    known_answers,
    known_observations,
)
from gaitforge.plugins.robot_runtime.c_code.networks import NetworkCode, network_code
from gaitforge.plugins.robot_runtime.c_code.robots import robot_tables
from gaitforge.plugins.robot_runtime.c_code.tables import (
    defines,
    double_literal,
    filled,
    float_literal,
    table,
)

BLOB_MAGIC = 0x43504647
"""First number of the blob: GFPC as bytes, "gaitforge policy, C"."""
_ALIGNED = 16
_SOURCE = Path(__file__).parent / "source"
_OF_RETURN_TO_GO, _OF_TARGET, _OF_SHOWN = range(3)


def source(name: str) -> str:
    """A file of `source/`."""
    return (_SOURCE / name).read_text(encoding="utf-8")


@dataclass(frozen=True)
class PolicyCode:
    """A policy and its program, and what its C code is made of.

    Attributes:
        policy: on the CPU, in float32, for evaluation.
        program: of one robot.
        facts: None for a policy of no known robot.
    """

    policy: PolicyNetwork
    program: StepProgram
    facts: RobotFacts | None

    @cached_property
    def network(self) -> NetworkCode:
        """The network's own part."""
        return network_code(self.program)

    @cached_property
    def weights(self) -> np.ndarray:
        """All weights as they are read; each part begins at a multiple of 64 bytes."""
        largest = np.finfo(np.float32).max
        parts = [part.ravel() for part in self.program.parts] + [self.network.weights]
        padded = [np.pad(part, (0, -part.size % _ALIGNED)) for part in parts]
        return np.concatenate(padded).clip(-largest, largest).astype("<f4")  # bounds are infinite

    @property
    def crc(self) -> int:
        """CRC-32 of the weights' bytes."""
        return crc32(self.weights.tobytes())

    @property
    def blob(self) -> bytes:
        """The weights for `policy_load`: magic, count, CRC-32 and zero, then the numbers."""
        head = np.array([BLOB_MAGIC, self.weights.size, self.crc, 0], "<u4")
        return head.tobytes() + self.weights.tobytes()

    @property
    def is_legged(self) -> bool:
        """Whether the observation and the command are the legged task's, which C can make."""
        facts = self.facts
        return (
            facts is not None
            and dict(self.policy.layout.stored_slices) == POLICY_SLICES
            and tuple(command.name for command in facts.command) == COMMAND_NAMES
        )

    @property
    def action_limit(self) -> float:
        """Infinite without a robot."""
        return float("inf") if self.facts is None else self.facts.action_limit

    @cached_property
    def reward_per_step(self) -> float:
        """What an expert earns in a step: its return by the episode's steps."""
        scale = self.policy.label_scale
        horizon = EPISODE_STEPS if self.facts is not None or scale is None else scale.horizon
        return float(np.float32(self.policy.return_at(1.0) / horizon))

    @cached_property
    def signs(self) -> np.ndarray | None:
        """(Do,) factor of each number that the network reads; None for none."""
        layout = self.policy.layout
        if not layout.signed_fields:
            return None
        observed = np.ones(layout.obs_dim + 1, np.float32)
        if layout.body_fields:
            observed[layout.stored_dim :][: layout.body_dim] = self.policy.body.numpy()
        return observed[layout.sign_places]

    @cached_property
    def answers(self) -> Answers:
        """The known answers."""
        mean, std = self.program.parts[:2]
        observations = known_observations(
            episode_steps(self.network.reach),
            self.policy.layout.stored_dim,
            self.program.source,
            mean,
            std,
            self.signs,
        )
        return known_answers(self.policy, observations, self.reward_per_step, self.action_limit)

    def main_source(self) -> str:
        """policy.c."""
        names = ["layers.c", *self.network.sources, "act.c"]
        names += ["robot.c"] if self.facts is not None else []
        functions = [source(name) for name in (*names, "check.c")]
        arithmetic = filled(source("arithmetic.c"), {"PRODUCT": source("product.c")})
        return "\n".join([arithmetic, self._tables(), *functions])

    def weights_source(self) -> str:
        """policy_weights.c."""
        count = self.weights.size
        aligned = (
            "/* The weights of policy.c. */\n"
            "#if defined(__GNUC__)\n"
            f"extern const float policy_weights[{count}] __attribute__((aligned(64)));\n"
            "#else\n"
            f"extern const float policy_weights[{count}];\n"
            "#endif\n\n"
        )
        return aligned + table("float", "policy_weights", self.weights, static=False)

    def _tables(self) -> str:
        """Macros and constant arrays of policy.c, which its functions read."""
        layout = self.policy.layout
        program_weights = sum(-(-part.size // _ALIGNED) * _ALIGNED for part in self.program.parts)
        values: dict[str, object] = {
            "TOKEN": len(self.program.source),
            "OBSERVED": layout.obs_dim,
            "ACTIONS": "POLICY_ACTIONS",
            "CLOCK_PERIOD": f"INT64_C({self.program.period})",
            "PAIR_BIAS": program_weights if self.network.weights.size else None,
            "BOUNDED": isinstance(self.policy.network, BoundedNetwork),
            "SIGNED": self.signs is not None,
            "BODY": layout.body_dim or None,
            "KEEPS_LAST_ACTION": layout.keeps_last_action,
            **self._last_action(),
            **self._return(),
            "WEIGHT_COUNT": self.weights.size,
            "WEIGHTS_CRC": f"0x{self.crc:08x}u",
            "BLOB_MAGIC": f"0x{BLOB_MAGIC:08x}u",
            "ANSWERS": len(self.answers.steps),
        }
        if self.is_legged:
            values |= {"LEGGED": True, "USES_ANGLES": True}
        parts = [defines(self.network.sizes | values), self.network.tables]
        parts.append(table("int32_t", "token_source", self.program.source))
        if layout.body_dim:
            parts.append(table("float", "body", self.policy.body.numpy()))
        if self.signs is not None:
            bounds = slice(*layout.obs_slices[BODY_SIGN])
            body = self.policy.body.numpy()[bounds.start - layout.stored_dim :]
            parts.append(table("float", "joint_signs", self.signs))
            parts.append(table("float", "action_signs", body[: self.policy.act_dim]))
        if self.policy.conditioned:
            parts.append(table("int32_t", "condition_kinds", self.condition_kinds()))
        parts.append(table("int32_t", "answer_steps", self.answers.steps))
        parts.append(table("float", "answer_actions", self.answers.actions))
        if self.facts is not None:
            parts.append(robot_tables(self.facts, self.is_legged))
        return "\n".join(parts)

    def _last_action(self) -> Mapping[str, object]:
        """Macros of the observation's last action and the filter of actions."""
        bounds = self.policy.layout.obs_slices.get(LAST_ACTION)
        share = self.policy.action_filter
        return {
            "LAST_ACTION_AT": None if bounds is None else bounds[0],
            "ACTION_FILTER": float_literal(share) if share < 1.0 else None,
        }

    def _return(self) -> dict[str, object]:
        """Macros of the condition."""
        policy = self.policy
        conditioned = policy.conditioned
        return {
            "CONDITIONS": policy.condition.width if conditioned else 0,
            "CONDITION_SCALE": float_literal(policy.condition.scale),
            "OF_RETURN_TO_GO": _OF_RETURN_TO_GO,
            "OF_SHOWN": _OF_SHOWN,
            "RETURN_ZERO": double_literal(float(policy.return_zero)),
            "RETURN_SCALE": double_literal(float(policy.return_scale)),
            "REWARD_PER_STEP": float_literal(self.reward_per_step),
        }

    def condition_kinds(self) -> list[int]:
        """What each of the condition's numbers is, see `Condition.in_control`."""
        condition = self.policy.condition
        kinds = [
            _OF_RETURN_TO_GO if label == RETURN_TO_GO else _OF_TARGET for label in condition.labels
        ]
        return [*kinds, *([_OF_SHOWN] if condition.hides else [])]

    def state_members(self) -> str:
        """The members of `policy_state` that differ between policies, as C."""
        memory = [
            f"        {ctype} {name}{f'[{count}]' if count else ''};\n"
            for ctype, name, count in self.network.memory
        ]
        command = "    float command[POLICY_COMMANDS];\n" if self.is_legged else ""
        return f"{command}    struct {{\n{''.join(memory)}    }} memory;\n"

    @property
    def state_bytes(self) -> int:
        """Size of `policy_state`, but for a few bytes of padding."""
        sizes: Mapping[str, int] = {"float": 4, "double": 8, "int64_t": 8}
        memory = sum(sizes[ctype] * max(count, 1) for ctype, _, count in self.network.memory)
        commands = len(COMMAND_NAMES) if self.is_legged else 0
        return 36 + 4 * (self.policy.act_dim + commands) + memory
