"""Command lines that the tests of all commands try, too: `tests/pipeline/command_line.py`."""

REFUSED = """
evaluate random --task derive | no policy is evaluated on task 'derive'
"""
"""A command and what its line has to say; names in braces are places."""
