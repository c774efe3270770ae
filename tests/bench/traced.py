"""Cost of telemetry: turns without it, with a sample of one in a hundred, and with a span for each step."""

from collections.abc import Mapping

import trio.lowlevel
from measure import ANSWER, Figures, Stopwatch, expect, short
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import TraceIdRatioBased

from actgent import LLM, BareAgent, Text, open_runtime
from actgent.llm.model_interface import ModelRequest, ModelResponse, OnText
from actgent.observe import Telemetry

ROUNDS = 5


class Instant(LLM):
    """A model that answers immediately."""

    name = "bench:instant"

    async def complete(self, chat: ModelRequest, *, on_text: OnText | None = None) -> ModelResponse:
        await trio.lowlevel.checkpoint()
        return ModelResponse(parts=(Text(ANSWER),))


class Nowhere(SpanExporter):
    """An exporter that drops all spans."""

    def export(self, spans: object) -> SpanExportResult:
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None: ...


async def measure_telemetry(count: int) -> Figures:
    """Return the CPU of a turn beyond a turn without telemetry: the best of several alternating rounds."""
    batched = TracerProvider()
    batched.add_span_processor(BatchSpanProcessor(Nowhere()))
    sampled = TracerProvider(sampler=TraceIdRatioBased(0.01))
    sampled.add_span_processor(BatchSpanProcessor(Nowhere()))
    ways: Mapping[str, Telemetry | None] = {
        "off": None,
        "api": Telemetry(),
        "sampled": Telemetry(tracer_provider=sampled),
        "all": Telemetry(tracer_provider=batched),
    }
    best = dict.fromkeys(ways, float("inf"))
    for _ in range(ROUNDS):
        for name, telemetry in ways.items():
            best[name] = min(best[name], await _turns(count // ROUNDS, telemetry))
    for provider in (batched, sampled):
        provider.shutdown()
    return {
        "turn_us": best["off"],
        **{f"{name}_us": best[name] - best["off"] for name in ways if name != "off"},
    }


async def _turns(count: int, telemetry: Telemetry | None) -> float:
    agent = BareAgent("bench", llm=Instant(), max_concurrent_sessions=50)
    answers = 0
    async with open_runtime(telemetry=telemetry) as runtime:
        await runtime.start(agent)
        sessions = [await agent.create_session("ada") for _ in range(50)]

        def count_answer(_: object) -> None:
            nonlocal answers
            answers += 1

        for session in sessions:
            session.on_conversation(count_answer)
        watch = Stopwatch()
        for first in range(0, count, len(sessions)):
            for number, session in enumerate(sessions, first):
                await session.chat(short(number))
            for session in sessions:
                await session.wait_idle()
        turn_us = watch.cpu_us(count)
    expect(seen=answers, wanted=count, what="answers")
    return turn_us
