"""A backend for the tests: hooks that are ok, say no, fail, are slow or hang; and who is alive."""

import asyncio
from collections.abc import Callable
from typing import Any

import cenote
from tests.support.kit import outcome as outcome

SLOW = 2.0  # seconds of a slow hook: less than every timeout of a pool
ENOUGH = 200  # calls of a factory: more than any test needs
HOOKS = ("factory", "before_acquire", "before_release", "destructor")


class Broken(Exception):
    """What a hook that fails raises."""


class Resource:
    def __init__(self, number: int) -> None:
        self.number = number

    def __repr__(self) -> str:
        return f"<Resource {self.number}>"


class Backend:
    """Its hooks, each with a mode: "sync" or "async", and "ok", "no", "fails", "slow" or "never".

    `live` counts what exists, from the call of the factory to the end of the destructor; `peak` is
    the most that ever existed at once.
    """

    def __init__(self, factory: str = "sync ok", **modes: str | None) -> None:
        self.modes: dict[str, str] = {"factory": factory}
        self.modes |= {hook: mode for hook, mode in modes.items() if mode is not None}
        self.made: list[Resource] = []
        self.errors: list[Broken] = []
        self.destroyed: list[Resource] = []
        self.calls = 0  # of the factory
        self.live = 0
        self.peak = 0

    def hooks(self) -> dict[str, Callable[..., Any]]:
        """The arguments of a pool."""
        return {
            hook: getattr(self, f"_{hook}_{mode.split()[0]}") for hook, mode in self.modes.items()
        }

    def heal(self) -> None:
        """From now on every hook is ok."""
        self.modes = {hook: f"{mode.split()[0]} ok" for hook, mode in self.modes.items()}

    def _act(self, hook: str) -> bool:
        mode = self.modes[hook].split()[1]
        if mode == "fails":
            error = Broken(f"{hook} {len(self.errors)}")
            self.errors.append(error)
            raise error
        return mode != "no"

    async def _act_later(self, hook: str) -> bool:
        mode = self.modes[hook].split()[1]
        if mode == "never":
            await asyncio.get_running_loop().create_future()
        await asyncio.sleep(SLOW if mode == "slow" else 0)
        return self._act(hook)

    def _begin(self) -> None:
        self.calls += 1
        assert self.calls < ENOUGH, "resources are made without end"
        self.live += 1
        self.peak = max(self.peak, self.live)

    def _make(self) -> Resource:
        resource = Resource(len(self.made))
        self.made.append(resource)
        return resource

    def _factory_sync(self) -> Resource:
        self._begin()
        try:
            self._act("factory")
        except BaseException:
            self.live -= 1
            raise
        return self._make()

    async def _factory_async(self) -> Resource:
        self._begin()
        try:
            await self._act_later("factory")
        except BaseException:
            self.live -= 1
            raise
        return self._make()

    def _before_acquire_sync(self, resource: Resource) -> bool:
        return self._act("before_acquire")

    async def _before_acquire_async(self, resource: Resource) -> bool:
        return await self._act_later("before_acquire")

    def _before_release_sync(self, resource: Resource) -> bool:
        return self._act("before_release")

    async def _before_release_async(self, resource: Resource) -> bool:
        return await self._act_later("before_release")

    def _destructor_sync(self, resource: Resource) -> None:
        try:
            self._act("destructor")
        finally:
            self._bury(resource)

    async def _destructor_async(self, resource: Resource) -> None:
        try:
            await self._act_later("destructor")
        finally:
            self._bury(resource)

    def _bury(self, resource: Resource) -> None:
        assert resource not in self.destroyed, f"{resource} was destroyed twice"
        self.destroyed.append(resource)
        self.live -= 1


class Doors:
    """An async hook of which each call waits until the test decides it."""

    def __init__(self) -> None:
        self.calls: list[asyncio.Future[Any]] = []

    async def __call__(self, *resource: Any) -> Any:
        call = asyncio.get_running_loop().create_future()
        self.calls.append(call)
        return await call


class Strategy:
    """A circuit breaker strategy that writes down what it hears, and what else it is told to do."""

    def __init__(self, on_failure: Callable[[Any], None] | None = None) -> None:
        self.heard: list[Any] = []
        self.on_failure = on_failure

    def report_success(self, source: Any) -> None:
        self.heard.append("success")

    def report_failure(self, source: Any, error: BaseException) -> None:
        self.heard.append(error)
        if self.on_failure is not None:
            self.on_failure(source)


def asking(pool: cenote.Pool[Any], name: str | None = None, **options: Any) -> asyncio.Task[Any]:
    """A task that awaits one acquire."""

    async def ask() -> Any:
        return await pool.acquire(**options)

    return asyncio.create_task(ask(), name=name)


async def take_all(pool: cenote.Pool[Any], size: int) -> list[Any]:
    """Acquire everything that the pool can give, at once; fails if a slot was lost."""
    return list(await asyncio.gather(*(asking(pool, timeout=100) for _ in range(size))))


async def give_all(pool: cenote.Pool[Any], resources: list[Any]) -> None:
    for resource in resources:
        await pool.release(resource)
