"""The player: episodes as one HTML page that opens from disk."""
