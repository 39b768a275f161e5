"""The FCNet paper's memory-mapped files."""
