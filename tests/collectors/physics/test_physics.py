"""Back ends by name, and what the names that cannot be built say."""

import pytest

from gaitforge.collectors.physics import (
    availability,
    is_exact,
    make_backend,
    processor_of,
    released_version,
)
from gaitforge.collectors.physics.interface import BackendUnavailable
from gaitforge.collectors.physics.isaacgym.process import PYTHON_VARIABLE
from gaitforge.collectors.simulators import backend_names
from tests.collectors.making import ROBOT


def test_back_ends_tell_their_device_and_version_where_they_are_not_built() -> None:
    assert (is_exact("mujoco"), processor_of("mujoco")) == (True, "cpu")
    assert released_version("mujoco") == availability("mujoco").version
    assert (is_exact("isaacgym"), processor_of("isaacgym")) == (False, "cuda")
    assert released_version("isaacgym") is None, "its own Python tells it"
    assert (backend_names()[0], backend_names()[-1]) == ("mujoco", "isaacgym")


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


def test_a_simulator_that_is_not_here_is_refused_with_what_it_lacks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(PYTHON_VARIABLE, raising=False)
    found = availability("isaacgym")
    assert not found.available
    assert f"with --isaacgym-python or in {PYTHON_VARIABLE}" in found.why_not
    with pytest.raises(BackendUnavailable) as refused:
        make_backend("isaacgym", ROBOT, 1, 1)
    assert str(refused.value) == f"simulator 'isaacgym' is not available: {found.why_not}"
    assert availability("mujoco").available
