"""Plans of Gymnasium's tasks of a wrong shape are refused as all are."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.flows.test_malformed_plans import check_settings, check_values

pytest.importorskip("gymnasium")
from gaitforge.plugins.gym.task import GymPlan

PLAN = GymPlan("Hopper-v5")


@given(st.data())
def test_a_value_of_another_shape_anywhere_is_a_value_error(data: st.DataObject) -> None:
    check_values(PLAN, data)


@given(st.data())
def test_a_setting_of_another_shape_is_a_value_error(data: st.DataObject) -> None:
    check_settings(PLAN, data)
