"""What it costs to be watched: a free resource taken and given back, and one handed over."""

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.util import find_spec
from time import perf_counter

import cenote

from .measure import (
    Case,
    Goal,
    Part,
    Samples,
    Scale,
    Table,
    interleave,
    median,
    ratio,
    ratios,
    spread,
)
from .uncontended import block

BARE = "cenote.Pool: async with acquire(), nobody watches"
NO_HISTORY = "the same, without the samples of its history"
AFTER = "the same, after a subscriber has left"
NOTHING = "a subscriber that does nothing"
PROMETHEUS = "the Prometheus collector"
OTEL = "the OpenTelemetry metrics"
BOTH = "Prometheus and OpenTelemetry"
STATEMENT = "cenote.Database: fetch_val, nobody watches"
STATEMENT_PROMETHEUS = "with the Prometheus collector"
STATEMENT_OTEL = "with the OpenTelemetry metrics, and an SDK"
HANDED = "cenote.Pool: hand-offs, nobody watches"
HANDED_WATCHED = "hand-offs with a subscriber that does nothing"
LIMIT, HISTORY_LIMIT = 1.3, 1.15
TASKS = 100  # that share one resource

Pool = cenote.Pool[object]
Watcher = Callable[[Pool], Callable[[], None]]  # begins, and returns the function that ends it


async def run(scale: Scale) -> Part:
    samples = await measure(scale)
    table = Table("Watched: take and give back", ["", "ns", "spread", "to bare"])
    for name, values in samples.items():
        bare = ratio(values, samples[BARE])
        table.rows.append([name, f"{median(values) * 1e9:,.0f}", spread(values), bare])
    handed = await measure_hand_offs(scale)
    contended = Table(f"Watched: {TASKS} tasks over one resource", ["", "ns", "spread", "to bare"])
    for name, values in handed.items():
        bare = ratio(values, handed[HANDED])
        contended.rows.append([name, f"{median(values) * 1e9:,.0f}", spread(values), bare])
    stated = await measure_statements(scale)
    statements = Table("Watched: a statement of SQLite in memory", ["", "ns", "spread", "to bare"])
    for name, values in stated.items():
        bare = ratio(values, stated[STATEMENT])
        statements.rows.append([name, f"{median(values) * 1e9:,.0f}", spread(values), bare])
    for name, package in ((PROMETHEUS, "prometheus_client"), (OTEL, "opentelemetry")):
        if name not in samples:
            table.notes.append(f"Skipped: {name}, because {package} is not installed.")
    if BOTH not in samples:
        table.notes.append(f"Skipped: {BOTH}.")
    if OTEL in samples:
        table.notes.append(
            "OpenTelemetry records what was measured when a reader collects: that is not in here."
        )
    remembering = median(ratios(samples[BARE], samples[NO_HISTORY]))
    goals = [Goal("async with acquire(), with its history to without", HISTORY_LIMIT, remembering)]
    for name in (PROMETHEUS, OTEL, BOTH):
        measured = median(ratios(samples[name], samples[BARE])) if name in samples else None
        goals.append(Goal(f"async with acquire() with {name}, to bare", LIMIT, measured))
    return Part([table, contended, statements], {**samples, **handed, **stated}, goals)


async def measure(scale: Scale) -> Samples:
    async with AsyncExitStack() as stack:
        cases: dict[str, Case] = {}
        for name, watch in watchers().items():
            cases[name] = block(await stack.enter_async_context(watched(watch)))
        return await interleave(cases, rounds=scale.short_rounds, operations=scale.operations)


async def measure_hand_offs(scale: Scale) -> Samples:
    """Every acquire waits, and every return is a hand-off."""
    async with AsyncExitStack() as stack:
        cases: dict[str, Case] = {}
        for name, watch in ((HANDED, nobody), (HANDED_WATCHED, do_nothing)):
            cases[name] = hand_offs(await stack.enter_async_context(watched(watch)))
        operations = max(TASKS, scale.operations // 10)
        return await interleave(cases, rounds=scale.short_rounds, operations=operations)


async def measure_statements(scale: Scale) -> Samples:
    """The SDK is in here: statements are recorded as they end."""
    watchers: dict[str, Callable[[cenote.Database], Callable[[], None]]] = {
        STATEMENT: lambda database: lambda: None
    }
    if find_spec("prometheus_client") is not None:
        watchers[STATEMENT_PROMETHEUS] = prometheus
    if find_spec("opentelemetry.sdk") is not None:
        watchers[STATEMENT_OTEL] = opentelemetry_sdk
    async with AsyncExitStack() as stack:
        cases: dict[str, Case] = {}
        for name, watch in watchers.items():
            database = cenote.Database("sqlite:///:memory:", name="bench")
            stack.callback(watch(database))
            cases[name] = statement(await stack.enter_async_context(database))
        operations = max(10, scale.operations // 10)
        return await interleave(cases, rounds=scale.short_rounds, operations=operations)


def statement(database: cenote.Database) -> Case:
    async def case(operations: int) -> float:
        began = perf_counter()
        for _ in range(operations):
            await database.fetch_val("select 1")
        return perf_counter() - began

    return case


def hand_offs(pool: Pool) -> Case:
    async def work(turns: int) -> None:
        for _ in range(turns):
            async with pool.acquire():
                await asyncio.sleep(0)  # the others come and wait

    async def case(operations: int) -> float:
        turns = max(1, operations // TASKS)
        began = perf_counter()
        await asyncio.gather(*(work(turns) for _ in range(TASKS)))
        return (perf_counter() - began) * operations / (turns * TASKS)

    return case


@asynccontextmanager
async def watched(watch: Watcher) -> AsyncIterator[Pool]:
    async with cenote.Pool(object, min_size=1, max_size=1, name="bench") as pool:
        end = watch(pool)
        yield pool
        end()


def watchers() -> dict[str, Watcher]:
    found: dict[str, Watcher] = {
        BARE: nobody, NO_HISTORY: forget, AFTER: leave, NOTHING: do_nothing,
    }  # fmt: skip
    if find_spec("prometheus_client") is not None:
        found[PROMETHEUS] = prometheus
    if find_spec("opentelemetry") is not None:
        found[OTEL] = opentelemetry
    if PROMETHEUS in found and OTEL in found:
        found[BOTH] = both
    return found


def nobody(pool: Pool) -> Callable[[], None]:
    return lambda: None


def forget(pool: Pool) -> Callable[[], None]:
    """Let no second be over for the history, which then takes no samples."""
    pool._engine.sample_at = math.inf
    return lambda: None


def leave(pool: Pool) -> Callable[[], None]:
    pool.subscribe(lambda event: None)()
    return lambda: None


def do_nothing(pool: Pool) -> Callable[[], None]:
    return pool.subscribe(lambda event: None)


def prometheus(pool: Pool | cenote.Database) -> Callable[[], None]:
    from prometheus_client import CollectorRegistry

    from cenote.extras.prometheus import Collector

    return Collector(pool, registry=CollectorRegistry()).close


def opentelemetry(pool: Pool) -> Callable[[], None]:
    from opentelemetry.metrics import NoOpMeterProvider

    from cenote.extras.otel import instrument

    return instrument(pool, meter_provider=NoOpMeterProvider()).close


def opentelemetry_sdk(database: cenote.Database) -> Callable[[], None]:
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    from cenote.extras.otel import instrument

    return instrument(database, meter_provider=MeterProvider([InMemoryMetricReader()])).close


def both(pool: Pool) -> Callable[[], None]:
    ends = prometheus(pool), opentelemetry(pool)

    def end() -> None:
        for each in ends:
            each()

    return end
