"""A user of a real server who may have only a few connections."""

import contextlib
from collections.abc import AsyncIterator
from urllib.parse import quote
from uuid import uuid4

from tests.support.backends import Backend
from tests.support.servers import PASSWORD, MariaDBServer

LIMIT = 2  # connections of the user


def superuser(backend: Backend) -> str:
    """A URL for the one who may do everything, on the server's socket."""
    if isinstance(backend.server, MariaDBServer):
        return f"mysql://root@/app?unix_socket={quote(str(backend.server.socket_path), safe='')}"
    return str(backend.server.url).replace("postgresql:", f"{backend.url.partition(':')[0]}:")


@contextlib.asynccontextmanager
async def limited(backend: Backend) -> AsyncIterator[str]:
    """A URL of a user who may have `LIMIT` connections."""
    user = f"u_{uuid4().hex[:8]}"
    async with backend.database(superuser(backend), max_size=1) as root:
        if backend.name == "mysql":
            name = f"{user}@'%'"
            await root.execute(
                f"create user {name} identified by '{PASSWORD}' with max_user_connections {LIMIT}"
            )
            await root.execute(f"grant all on app.* to {name}")
        else:
            name = user
            await root.execute(f"create user {user} password '{PASSWORD}' connection limit {LIMIT}")
        try:
            yield backend.url.replace("//app:", f"//{user}:")
        finally:
            await root.execute(f"drop user {name}")
