"""The legged task on any physics back end."""
