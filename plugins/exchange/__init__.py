"""Other projects' dataset formats (LeRobot, Minari, robomimic), and publishing on the Hub."""
