"""A fake service: hooks that are ok, say no, fail, are slow or hang; and how many are alive."""

import asyncio
from collections.abc import Callable
from typing import Any

import cenote
from tests.support.kit.resources import Thing
from tests.support.kit.tasks import give_all, take_all

SLOW = 2.0  # seconds of a slow hook: less than every timeout of a pool
ENOUGH = 200  # calls of a factory: more than any test needs
HOOKS = ("factory", "before_acquire", "before_release", "destructor")


class Broken(Exception):
    """What a hook that fails raises."""


class NumberedThing(Thing):
    """A resource with its place in the order of creation."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __repr__(self) -> str:
        return f"<NumberedThing {self.number}>"


class FakeService:
    """The hooks of a pool, each with a mode.

    A mode is "sync" or "async", and "ok", "no", "fails", "slow" or "never".

    `live` counts what exists, from the call of the factory to the end of the destructor; `peak` is
    the most that ever existed at once.
    """

    def __init__(self, factory: str = "sync ok", **modes: str | None) -> None:
        self.modes: dict[str, str] = {"factory": factory}
        self.modes |= {hook: mode for hook, mode in modes.items() if mode is not None}
        self.made: list[NumberedThing] = []
        self.errors: list[Broken] = []
        self.destroyed: list[NumberedThing] = []
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

    def _make(self) -> NumberedThing:
        resource = NumberedThing(len(self.made))
        self.made.append(resource)
        return resource

    def _factory_sync(self) -> NumberedThing:
        self._begin()
        try:
            self._act("factory")
        except BaseException:
            self.live -= 1
            raise
        return self._make()

    async def _factory_async(self) -> NumberedThing:
        self._begin()
        try:
            await self._act_later("factory")
        except BaseException:
            self.live -= 1
            raise
        return self._make()

    def _before_acquire_sync(self, resource: NumberedThing) -> bool:
        return self._act("before_acquire")

    async def _before_acquire_async(self, resource: NumberedThing) -> bool:
        return await self._act_later("before_acquire")

    def _before_release_sync(self, resource: NumberedThing) -> bool:
        return self._act("before_release")

    async def _before_release_async(self, resource: NumberedThing) -> bool:
        return await self._act_later("before_release")

    def _destructor_sync(self, resource: NumberedThing) -> None:
        try:
            self._act("destructor")
        finally:
            self._bury(resource)

    async def _destructor_async(self, resource: NumberedThing) -> None:
        try:
            await self._act_later("destructor")
        finally:
            self._bury(resource)

    def _bury(self, resource: NumberedThing) -> None:
        assert resource not in self.destroyed, f"{resource} was destroyed twice"
        self.destroyed.append(resource)
        self.live -= 1


async def filled(
    make_pool: Callable[..., cenote.Pool[Any]], service: FakeService, size: int, **options: Any
) -> cenote.Pool[Any]:
    """A pool with this many idle resources, which is all that it may have."""
    pool = make_pool(**service.hooks(), max_size=size, **options)
    await give_all(pool, await take_all(pool, size))
    return pool
