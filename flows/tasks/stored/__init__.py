"""Tasks on stored episodes: added fields, new rewards, and one thing changed."""
