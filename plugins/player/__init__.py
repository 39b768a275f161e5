"""The player and the explorer: pages that play episodes, and that chart a catalog's columns."""
