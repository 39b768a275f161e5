"""Command lines that the tests of all commands try, too: `tests/pipeline/command_line.py`."""

REFUSED = """
export {walks} fcnet {new} | FCNet's maps need the slice projected_gravity
"""
"""A command and what its line has to say; names in braces are places."""
WITHOUT_EFFECT = """
run robustness {trained} --out {new} | --seeds 0 --steps 3 --where level=1 --parts 3 --expert x
"""
"""A command line, and options that have no effect there."""
