"""What an episode asks of a robot: terrain, passage, command ranges, randomisation."""
