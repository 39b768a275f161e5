"""Every format whose packages are installed."""

from collections.abc import Iterator

import pytest

from gaitforge.datasets.formats import find_format
from tests.datasets.formats import rows_format
from tests.datasets.formats.cases import CASES
from tests.datasets.formats.format_stores import Case


@pytest.fixture(autouse=True, scope="module")
def rows() -> Iterator[None]:
    """The tests' own format is known, as if a package had brought it."""
    with rows_format.registered():
        yield


@pytest.fixture(params=sorted(CASES))
def name(request: pytest.FixtureRequest) -> str:
    """The name of a format."""
    if request.param != rows_format.NAME and (missing := find_format(request.param).missing):
        pytest.skip(f"{', '.join(missing)} not installed: extras")
    return request.param


@pytest.fixture
def case(name: str) -> Case:
    """What the format is tried with."""
    return CASES[name]
