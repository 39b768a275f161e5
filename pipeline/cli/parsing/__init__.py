"""Shared options of the commands, their types, and the options of runners."""
