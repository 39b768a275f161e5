"""Commands, their options and forms, and the commands that plug-ins add."""
