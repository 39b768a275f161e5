"""MuJoCo Warp, and the checks that any physics back end must pass."""
