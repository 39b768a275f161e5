"""Exported policies as files for a robot's program, and the control loop that runs such a file."""
