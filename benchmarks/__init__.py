"""Measurements of this project's speeds, run from a clone: `python -m benchmarks`."""
