"""The networks and their registry; one file or folder per network."""
