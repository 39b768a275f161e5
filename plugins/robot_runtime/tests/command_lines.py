"""Command lines that the tests of all commands try, too: `tests/pipeline/command_line.py`."""

REFUSED = """
export check {gone} --log {gone} | no exported policy in
export check {empty} | nothing to check: give --log, --config or both
export check {empty} --config {gone} | no exported policy in
"""
"""A command and what its line has to say; names in braces are places."""
WITHOUT_EFFECT = """
export check {new} --config {new} | --robot go2
"""
"""A command line, and options that have no effect there."""
