"""Command lines that the tests of all commands try, too: `tests/pipeline/command_line.py`."""

WITHOUT_EFFECT = """
run legged-shift-v1 {store} --out {new} | --parts 3 --where level=1 --selection x.json
"""
"""A command line, and options that have no effect there."""
