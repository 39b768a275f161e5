"""Every format whose packages are installed."""

import pytest

from gaitforge.datasets.formats import find_format
from tests.datasets.formats.format_stores import CASES


@pytest.fixture(params=sorted(CASES))
def name(request: pytest.FixtureRequest) -> str:
    """The name of a format."""
    if missing := find_format(request.param).missing:
        pytest.skip(f"{', '.join(missing)} not installed: extras")
    return request.param
