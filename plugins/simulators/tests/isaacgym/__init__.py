"""Tests of the `isaacgym` back end, on a double of the package."""
