"""Checks of order, signs, units and pose of a robot's sensors, without a motor moving."""
