"""Tests of the commands on robots, experts and simulators."""
