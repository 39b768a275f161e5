"""Command lines that the tests of all commands try, too: `tests/pipeline/command_line.py`."""

REFUSED = """
import robomimic {gone} {new} | gone: no such file
import robomimic {empty} {new} | is a folder; give a file
export {store} robomimic {new} --set layout=flat | option layout is 'flat'; allowed: rob
"""
"""A command and what its line has to say; names in braces are places."""
WITHOUT_EFFECT = """
publish {store} hf://a/b --format lerobot | --history
"""
"""A command line, and options that have no effect there."""
