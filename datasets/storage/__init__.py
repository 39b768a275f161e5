"""How a store lies on disk or in object storage: immutable parts, commits and checks."""
