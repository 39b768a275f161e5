"""Tests of the plug-in."""
