"""The networks by name; one file or folder each."""
