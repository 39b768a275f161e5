"""Constants of the task: gravity, physics substeps, control steps, episodes."""

GRAVITY_MS2 = 9.81

DECIMATION = 4
SUBSTEP_S = 0.005
CONTROL_DT_S = DECIMATION * SUBSTEP_S

EPISODE_STEPS = 192
"""The paper's average trajectory length; 3.84 s at 50 Hz."""
EPISODE_S = EPISODE_STEPS * CONTROL_DT_S


def steps_in(seconds: float) -> int:
    """Control steps in so many seconds."""
    return round(seconds / CONTROL_DT_S)
