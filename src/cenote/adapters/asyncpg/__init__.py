"""`create_pool()`: asyncpg's pool on `cenote.Pool`.

    pool = await create_pool(dsn, min_size=2, max_size=10)

The interface is that of `asyncpg.Pool`, which the pool is an instance of.
"""

from .pool import Pool, create_pool

__all__ = ["Pool", "create_pool"]
