"""Measure a back end's throughput."""

import time

from gaitforge.collectors.physics.contract.scene import (
    FIRM_STANCE,
    Make,
    hold,
    placed,
    require,
    start_at,
)

ROBOTS = 256
_WARM_UP, _STEPS = 3, 20


def throughput(make: Make, robots: int = ROBOTS) -> str:
    """Control steps a second of robots that stand on flat ground; no bar."""
    backend = placed(make, *[start_at(joint_pos=FIRM_STANCE)] * robots)
    hold(backend, _WARM_UP, FIRM_STANCE)
    started = time.perf_counter()
    hold(backend, _STEPS, FIRM_STANCE)
    rate = robots * _STEPS / (time.perf_counter() - started)
    height = backend.state.base_pos[:, 2]
    require((height > 0.2).all(), f"a robot is at {height.min():.2f} m")
    return f"{rate:,.0f} control steps/s with {robots} robots"
