"""Command lines that the tests of all commands try, too: `tests/pipeline/command_line.py`."""

REFUSED = """
export {store} d4rl {new} --where colour=1 | colour
export {store} d4rl s3://walks/out.hdf5 | out.hdf5 is no local path; export to one
export {store} d4rl {store}/data.hdf5 | is inside the store
export {store} d4rl {new} --formats onnx | --formats has no effect
import d4rl {gone} {new} | gone: no such file
import d4rl {gone} {new} --set horizon=x | setting 'horizon' needs a whole number
import d4rl {gone} {new} --set colour=x | unknown setting 'colour'; allowed: contr
import d4rl s3://walks/hopper.hdf5 {new} | hopper.hdf5 is no local path; copy it to
gym collect {new} --env Bee-v5 --policies {hopper} | no task 'Bee-v5'
gym collect {new} --env Walker2d-v5 --policies {hopper} | not of Walker2d-v5
gym collect {new} --env Hopper-v5 --policies {gone} | no finished training in
gym collect {new} --env Hopper-v5 --policies {hopper} --quality x | unknown quality 'x'
gym collect {new} --env Hopper-v5 --policies {hopper} --physics | no simulator state
gym collect {new} --env Hopper-v5 --policies {hopper} --steps 0 | at least 1, not '0'
evaluate none --task gym | no policy 'none'; allowed: medium, expert
evaluate random --task gym --set env=Bee-v5 | no task 'Bee-v5'
evaluate random --task gym --set environments=0 | at least 1
evaluate random --task gym --terrain flat | options of legged robots; gym has --set
"""
"""A command and what its line has to say; names in braces are places."""
WITHOUT_EFFECT = """
export {store} d4rl {new} | --formats onnx --checkpoint last --batch-size 1 --robot x
expert train --out {new} --env Pendulum-v1 | --robots 3 --terrain flat --skill run
gym collect {new} --env Hopper-v5 --policies {hopper} --quality expert | --replay x --replay-steps 3
"""
"""A command line, and options that have no effect there."""
JSON = """
gym list --json
"""
"""Commands that print JSON."""
MISTAKES = """
import d4r x.hdf5 {new} | unknown format 'd4r'; did you mean 'd4rl'?
"""
"""A typical mistake, and what its line of error holds."""
