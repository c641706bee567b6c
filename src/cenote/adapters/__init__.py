"""`cenote.Pool` under the pool interfaces of other libraries: SQLAlchemy, redis-py, asyncpg."""
