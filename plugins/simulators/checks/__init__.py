"""Checks that every physics back end must pass."""
