"""Exhibits: the test suites of PostgreSQL, MariaDB and SQLite, replayed against the bare driver.

`make replay` fetches them, splits them into single statements and runs each one on the bare
driver and through `cenote.Database`. See `replay` for what is compared, and `expected.toml` for the
differences that were reviewed.
"""
