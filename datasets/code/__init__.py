"""Code of the user: what data may name of it, and its version."""
