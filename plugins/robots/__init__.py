"""Robots from MJCF and URDF, varied bodies, and experts of other projects."""
