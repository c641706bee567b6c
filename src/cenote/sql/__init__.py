"""The database layer."""
