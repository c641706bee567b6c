"""The end of a `cenote.Pool` under the pool of another library."""

from __future__ import annotations

from typing import Any

from ..pool import Pool


async def close(pool: Pool[Any]) -> None:
    """Close a pool. Raises the first of what its destructors raise: libraries know no groups."""
    try:
        await pool.close()
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None
