"""Rollouts and what they need: robots, terrains, skills, physics back ends, expert policies."""

import os

if __name__ != "gaitforge.collectors":
    raise ImportError(
        "this folder is gaitforge's: import gaitforge.collectors; to import another package called "
        "collectors, start Python in another folder"
    )

# MuJoCo loads the renderer that MUJOCO_GL names as it is imported, and fails where it cannot. Only
# drawing needs one: `rendering` imports MuJoCo before this package.
if "MUJOCO_GL" in os.environ:
    _renderer = os.environ["MUJOCO_GL"]
    os.environ["MUJOCO_GL"] = "disabled"
    try:
        import mujoco  # noqa: F401
    finally:
        os.environ["MUJOCO_GL"] = _renderer
