"""Pictures of recorded episodes."""
