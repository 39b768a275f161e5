"""A flag of the name of an option names no code."""

import pytest

from tests.pipeline.canary import code_of


@pytest.mark.parametrize("trust", [(), ("--trust",)])
def test_a_flag_of_that_name_names_no_code(trust: tuple[str, ...]) -> None:
    assert code_of(["expert", "import", "walk.pt", "--name", "walk", *trust]) == set()
