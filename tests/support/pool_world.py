"""The hooks that a machine gives to a real pool, and the gates at which they wait."""

import asyncio
from typing import Any

from tests.support.model_records import Options, unlucky

NEVER = 1e6  # seconds: hooks end when the machine says so


class FactoryFailed(Exception):
    pass


class Resource:
    def __init__(self, label: str) -> None:
        self.label = label


class World:
    """The hooks of the real pool, and the gates at which the async ones wait."""

    def __init__(self, options: Options, package: Any) -> None:
        self.failing: set[int] = set()  # for which acquires a sync factory fails
        self.spoiled: set[str] = set()  # what a sync before_acquire rejects
        self.dirty: set[str] = set()  # what a sync before_release rejects
        self.made = self.made_by_pool = self.unmade = 0
        self.trying = ""  # the try_acquire() under way
        self.creations: list[asyncio.Future[bool]] = []
        self.gates: dict[tuple[str, str], asyncio.Future[bool]] = {}  # of hook and resource
        self.faults: list[str] = []
        self.most = options.max_size  # that may exist at once
        self.pool = package.Pool(
            self.async_factory if options.async_factory else self.factory,
            before_acquire=self.hook("before_acquire", options.before_acquire, self.spoiled),
            before_release=self.hook("before_release", options.before_release, self.dirty),
            destructor=None if options.destructor == "none" else self.destructor,
            lifo=options.lifo,
            min_size=options.min_size,
            max_size=options.max_size,
            max_creating=options.max_creating,
            queue_target=options.queue_target,
            queue_interval=options.queue_interval,
            max_uses=options.max_uses,
            max_waiting=options.max_waiting,
            recovering_limit=options.recovering_limit,
            reuse_after_cancel=options.reuse_after_cancel,
            create_timeout=NEVER,
            hook_timeout=NEVER,
            destructor_timeout=NEVER,
        )
        self.lanes = [
            self.pool.lane(f"lane {number}", max_size=size, priority=priority)
            for number, (size, priority) in enumerate(options.lanes)
        ]
        self.async_destructor = options.destructor == "async"
        self.counts_destructions = options.destructor != "none"

    def factory(self) -> Resource:
        self.look()
        task = asyncio.current_task()
        assert task is not None
        name = self.trying or task.get_name()
        if not name.startswith(("task", "try")):
            return self.make(None)
        if unlucky(name, self.failing):
            raise FactoryFailed
        return self.make(name)

    def make(self, maker: str | None) -> Resource:
        """Named after the acquire that made it: which of two came first in a step is open."""
        self.made += 1
        if maker is None:
            self.made_by_pool += 1
        return Resource(maker or f"creation {self.made_by_pool}")

    async def async_factory(self) -> Resource:
        self.look()
        gate = asyncio.get_running_loop().create_future()
        self.creations.append(gate)
        try:
            succeeds = await gate
        finally:
            if gate in self.creations:
                self.creations.remove(gate)
        if not succeeds:
            raise FactoryFailed
        return self.make(None)

    def hook(self, name: str, kind: str, rejected: set[str]) -> Any:
        def accepts(resource: Resource) -> bool:
            self.look()
            return resource.label not in rejected

        async def waits(resource: Resource) -> bool:
            self.look()
            return await self.gate(name, resource)

        return {"none": None, "sync": accepts, "async": waits}[kind]

    def destructor(self, resource: Resource) -> Any:
        self.unmade += 1
        self.look()
        return self.destruction(resource) if self.async_destructor else None

    async def destruction(self, resource: Resource) -> None:
        if not await self.gate("destructor", resource):
            raise ValueError("a destructor failed")

    async def gate(self, hook: str, resource: Resource) -> bool:
        key = hook, resource.label
        self.gates[key] = asyncio.get_running_loop().create_future()
        try:
            return await self.gates[key]
        finally:
            self.gates.pop(key, None)

    def look(self) -> None:
        """What holds at every instant, also in the middle of everything."""
        stats = self.pool.stats()
        if stats.count != stats.idle + stats.active or stats.count != len(self.pool):
            self.faults.append(f"counted wrong: {stats}")
        if self.counts_destructions and self.made - self.unmade != stats.count:
            self.faults.append(f"{self.made} made, {self.unmade} unmade: {stats}")
        total = stats.count + stats.creating + stats.destroying
        self.most = max(self.pool.max_size, min(self.most, total))
        if total > self.most:
            self.faults.append(f"{total} of at most {self.most}: {stats}")
