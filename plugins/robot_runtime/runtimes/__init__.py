"""Files that other projects' programs for robots read."""
