"""Policies on a robot: C code, files of other runtimes, and checks before a motor moves."""
