"""Other projects' dataset formats: LeRobot, Minari and robomimic."""
