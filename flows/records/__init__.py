"""Plans, records, heartbeats and logs, as files."""
