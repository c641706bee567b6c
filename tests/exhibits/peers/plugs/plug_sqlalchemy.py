"""A plugin of pytest: engines for asyncio have `CenotePool` where they had SQLAlchemy's own."""

import sqlalchemy
import sqlalchemy.pool
from sqlalchemy.pool import impl

from cenote.adapters.sqlalchemy import CenotePool


class AsyncAdaptedQueuePool(CenotePool):
    """By this name the tests are called, and what SQLAlchemy says has it."""


for module in (sqlalchemy, sqlalchemy.pool, impl):
    module.AsyncAdaptedQueuePool = AsyncAdaptedQueuePool  # type: ignore[attr-defined, assignment, misc]
