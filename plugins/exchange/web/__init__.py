"""Stores that lie on a web server or on the Hugging Face Hub, read in place."""
