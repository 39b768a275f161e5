"""Tests of `gaitforge.collectors.humanoid`; those that need dm_control are skipped without it."""
