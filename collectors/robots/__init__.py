"""Robot cards, leg kinematics, commands, and the kinematic gait."""
