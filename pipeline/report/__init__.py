"""Pages, charts and pictures."""
