"""The trainer, shared by every model and objective."""
