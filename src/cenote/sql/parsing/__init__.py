"""Read SQL texts: tokens, placeholders, and what a statement does to the session."""
