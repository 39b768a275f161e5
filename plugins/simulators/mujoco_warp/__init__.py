"""MuJoCo Warp: the same models on a GPU."""
