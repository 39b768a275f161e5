"""Command lines that the tests of all commands try, too: `tests/pipeline/command_line.py`."""

REFUSED = """
humanoid reference --list {gone} | no reference file at
humanoid reference --out {new} --motion fly | unknown motion 'fly'
humanoid reference --out {new} --rollouts {gone} | no such file
humanoid collect {new} --reference {clips} --clips run_00 | is no snippet
humanoid collect {new} --reference {clips} --overlap 999 | overlap < length
humanoid train-expert --reference {clips} --out {new} --set x=1 | unknown
"""
"""A command and what its line has to say; names in braces are places."""
WITHOUT_EFFECT = """
humanoid reference --list {new} | --motion squat --frames 96 --variants 1 --rollouts {gone}
humanoid collect {new} --reference {clips} --clips step_00-0-9 | --snippet-frames 9 --overlap 1
"""
"""A command line, and options that have no effect there."""
STAGES = """
humanoid train-expert --reference {clips} --clips step_00 --out {out} --stage 'train step_00-0-39'
"""
"""Commands with stages."""
WHOLE = """
humanoid collect {out} --reference {clips} --clips step_00
"""
"""Commands of one stage."""
