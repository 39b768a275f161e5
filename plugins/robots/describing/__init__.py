"""A robot's card and clean MJCF from any MJCF or URDF of a quadruped."""
