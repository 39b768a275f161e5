"""Every format whose packages are installed."""

import pytest

from gaitforge.datasets.formats import FORMATS
from tests.datasets.formats.format_stores import CASES


@pytest.fixture(params=sorted(CASES))
def name(request: pytest.FixtureRequest) -> str:
    """The name of a format."""
    if missing := FORMATS[request.param].missing:
        pytest.skip(f"{', '.join(missing)} not installed: extras")
    return request.param
