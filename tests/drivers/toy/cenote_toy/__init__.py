"""A driver that is no part of cenote, for a database with a dialect of its own."""
