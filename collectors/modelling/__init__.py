"""Robots from files: described from an MJCF, and varied bodies of a family."""
