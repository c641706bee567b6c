"""A plugin of pytest: asyncpg's pools are those of the adapter, before its tests import them."""

import asyncpg
import asyncpg.pool

from cenote.adapters.asyncpg import Pool, create_pool

for module in (asyncpg, asyncpg.pool):
    module.Pool = Pool
    module.create_pool = create_pool
