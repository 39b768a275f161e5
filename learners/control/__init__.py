"""Policies in control: the control loop, and control steps compiled for one CPU thread."""
