"""Whose child the span of an acquire is, when a task waits more than once."""

import pytest

import cenote
from cenote.testing import settle
from tests.support.kit import Holding, Thing, outcome

pytest.importorskip("opentelemetry.sdk")

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from cenote.extras.otel import instrument


@pytest.mark.virtual_time
async def test_an_earlier_wait_of_the_task_is_no_parent(make_pool):
    exporter, tracers = InMemorySpanExporter(), TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = tracers.get_tracer("test")
    pool = make_pool(Thing, max_size=1, name="main")
    instrumentation = instrument(pool, tracer_provider=tracers, spans=["acquire"])
    holding = Holding(pool)
    await settle()
    with tracer.start_as_current_span("first"):
        error = await outcome(pool.acquire(timeout=1))
        assert isinstance(error, cenote.AcquireTimeoutError)
    pool.deactivate()
    with tracer.start_as_current_span("second") as parent:
        assert isinstance(await outcome(pool.acquire()), cenote.ServiceUnavailableError)
    last = [span for span in exporter.get_finished_spans() if span.name == "cenote.acquire"][-1]
    assert last.parent.span_id == parent.get_span_context().span_id
    await holding.leave()
    instrumentation.close()
    tracers.shutdown()
