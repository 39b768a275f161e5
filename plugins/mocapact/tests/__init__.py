"""Tests of the plug-in; those that need dm_control are skipped without it."""
