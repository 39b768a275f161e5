"""Plans, records, logs and status, as files."""
