"""The check of an imported expert compares its walk with the commanded speed."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gaitforge.collectors.experts.expert import load_expert
from gaitforge.collectors.legged.observations import POLICY_SLICES
from gaitforge.collectors.policy import Observation
from gaitforge.collectors.robots.kinematics import C
from gaitforge.collectors.robots.robot import N_JOINTS
from gaitforge.plugins.robots.imported_experts.checking import SPEED_MS, check_imported
from gaitforge.plugins.robots.imported_experts.networks import Arrays
from gaitforge.plugins.robots.imported_experts.policy import ImportedPolicy, parse_layout

pytestmark = pytest.mark.slow
_START = POLICY_SLICES["command"][0]


class Dead:
    """A network that always answers 0."""

    parameters, normaliser = 0, None

    def __init__(self) -> None:
        self.state: Arrays = []

    def step(self, inputs: np.ndarray, state: Arrays) -> tuple[np.ndarray, Arrays]:
        return np.zeros((len(inputs), N_JOINTS), np.float32), state


class Walker(ImportedPolicy):
    """The shipped Aliengo expert behind an imported layout, with a slip of scales.

    Args:
        actions: factor of its actions; command: factor of the commanded speed that it sees.
    """

    def __init__(self, actions: float = 1.0, command: float = 1.0) -> None:
        self._expert = load_expert("aliengo-locomotion").policy
        robot = self._expert.robot
        layout: dict[str, Any] = {"joints": list(robot.joint_names), "action_scale": 0.25}
        layout |= {"default_joint_pos": robot.default_joint_pos_rad.tolist(), "terms": ["command"]}
        super().__init__("walker", robot, parse_layout(layout, "test"), Dead())
        self._actions, self._command = actions, command

    def act(self, observation: Observation) -> np.ndarray:
        seen, command = observation.policy.copy(), observation.command.copy()
        seen[:, _START + C.VEL_X] *= self._command
        command[:, C.VEL_X] *= self._command
        answer = self._expert.act(replace(observation, policy=seen, command=command))
        return self._actions * answer


def check(policy: ImportedPolicy, folder: Path) -> tuple[dict[str, Any], str]:
    findings = check_imported(policy, folder)
    return findings.figures, "\n".join(findings.warnings)


def test_a_good_expert_has_no_fault(tmp_path: Path) -> None:
    """Told 0.1 m/s in the check's gait, the shipped expert walks at 0.5 m/s."""
    figures, warnings = check(Walker(command=0.2), tmp_path)
    assert warnings == ""
    assert figures["speed_ms"] == pytest.approx(SPEED_MS, abs=0.1)


@pytest.mark.parametrize("slip", [{"actions": 0.1}, {"command": 2.0}, {"command": -1.0}], ids=str)
def test_a_walk_that_misses_the_speed_is_a_fault(tmp_path: Path, slip: dict[str, float]) -> None:
    """Also backwards, where the speed's size is right."""
    figures, warnings = check(Walker(**slip), tmp_path)
    assert figures["speed_error_ms"] > 0.5 * SPEED_MS
    assert "told 0.5 m/s: likely causes are action_scale" in warnings


def test_a_policy_that_reads_no_speed_may_stand(tmp_path: Path) -> None:
    told = Walker(actions=0.0)
    assert "told 0.5 m/s, and the actions never change" in check(told, tmp_path)[1]
    [command] = told.layout.terms
    told.layout = replace(told.layout, terms=(replace(command, columns=("yaw_rate",)),))
    assert check(told, tmp_path)[1] == ""
