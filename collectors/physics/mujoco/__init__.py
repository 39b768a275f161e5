"""MuJoCo on the CPU: the default back end."""
