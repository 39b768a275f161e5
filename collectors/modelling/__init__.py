"""Robots from files: varied bodies of a family."""
