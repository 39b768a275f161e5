"""Policies in control: the control loop, compiled steps, exported files."""
