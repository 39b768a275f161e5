"""Back ends by name, and what the names that cannot be built say."""

import pytest

from gaitforge.collectors.physics import (
    availability,
    is_exact,
    make_backend,
    processor_of,
    released_version,
)
from gaitforge.collectors.simulators import backend_names
from tests.collectors.making import ROBOT


def test_back_ends_tell_their_device_and_version_where_they_are_not_built() -> None:
    assert (is_exact("mujoco"), processor_of("mujoco")) == (True, "cpu")
    assert released_version("mujoco") == availability("mujoco").version
    assert backend_names()[0] == "mujoco"


def test_an_unknown_simulator_is_refused_with_the_known_ones() -> None:
    message = rf"unknown simulator 'ode'; allowed: {', '.join(backend_names())}"
    with pytest.raises(ValueError, match=message):
        make_backend("ode", ROBOT, 1, 1)
    with pytest.raises(ValueError, match=message):
        availability("ode")


@pytest.mark.parametrize("name", backend_names())
def test_no_robots_or_no_threads_are_refused(name: str) -> None:
    for robots, threads in ((0, 1), (1, 0)):
        with pytest.raises(ValueError, match="both must be at least 1"):
            make_backend(name, ROBOT, robots, threads)
