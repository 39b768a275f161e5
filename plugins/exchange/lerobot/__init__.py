"""LeRobot datasets, version 3."""
