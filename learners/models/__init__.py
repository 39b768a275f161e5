"""The networks, a file for each family of them, and their registry."""
