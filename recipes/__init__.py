"""Programs that made shipped policies, run from a clone."""
