"""Command lines that the tests of all commands try, too: `tests/pipeline/command_line.py`."""

WITHOUT_EFFECT = """
train {store} --out {new} --plan {train_plan} | --objective awr --optimiser lion --where level=1
"""
"""A command line, and options that have no effect there."""
