"""SQLite, the embedded default, through aiosqlite."""
