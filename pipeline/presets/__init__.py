"""The experiments that ship, as data."""
