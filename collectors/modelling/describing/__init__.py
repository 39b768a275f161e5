"""A robot's card and clean MJCF from an MJCF of any making."""
