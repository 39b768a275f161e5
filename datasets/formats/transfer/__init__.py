"""Import and export, the same for every format."""
