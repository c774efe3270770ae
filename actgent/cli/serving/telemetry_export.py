"""Telemetry of `actgent serve --telemetry`: an OpenTelemetry SDK that is configured by the standard `OTEL_*` variables."""

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from importlib.metadata import entry_points
from typing import Any

import trio
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from actgent.errors import ConfigurationError
from actgent.observe import Telemetry

EXTRA = "pip install 'actgent[otlp]'"
SHUTDOWN_SECONDS = 10.0
"""Maximum seconds for the export of the last spans and metrics when the server stops."""
_CONTENT_VARIABLE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
_CONTENT_MODES = ("SPAN_ONLY", "SPAN_AND_EVENT")
"""Values of `OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT` that record contents in spans."""


@asynccontextmanager
async def open_telemetry() -> AsyncGenerator[Telemetry, None]:
    """Yield the OpenTelemetry setup of a server. When the block exits, the last spans and metrics are exported.

    `OTEL_TRACES_EXPORTER` and `OTEL_METRICS_EXPORTER` select exporters; the default is `otlp`. The SDK reads the other
    variables, e.g. `OTEL_SERVICE_NAME`, `OTEL_EXPORTER_OTLP_ENDPOINT` and `OTEL_TRACES_SAMPLER`.

    Raises:
        ConfigurationError: A variable names an exporter that is not installed.
    """
    tracers, meters = _make_providers()
    trace.set_tracer_provider(tracers)
    metrics.set_meter_provider(meters)
    has_content = os.environ.get(_CONTENT_VARIABLE, "").upper() in _CONTENT_MODES
    try:
        yield Telemetry(content=has_content, tracer_provider=tracers, meter_provider=meters)
    finally:
        with trio.move_on_after(SHUTDOWN_SECONDS, shield=True):
            await trio.to_thread.run_sync(partial(_shut_down, tracers, meters), abandon_on_cancel=True)


def _make_providers() -> tuple[TracerProvider, MeterProvider]:
    resource = Resource.create()
    if str(resource.attributes["service.name"]).startswith("unknown_service"):
        resource = resource.merge(Resource({"service.name": "actgent"}))
    tracers = TracerProvider(resource=resource, shutdown_on_exit=False)
    for exporter in _make_exporters("traces"):
        tracers.add_span_processor(BatchSpanProcessor(exporter))
    readers = [
        each if isinstance(each, MetricReader) else PeriodicExportingMetricReader(each)
        for each in _make_exporters("metrics")
    ]
    return tracers, MeterProvider(readers, resource, shutdown_on_exit=False)


def _make_exporters(signal: str) -> list[Any]:
    """Create the exporters that `OTEL_TRACES_EXPORTER` or `OTEL_METRICS_EXPORTER` names, separated by commas.

    `signal` is `traces` or `metrics`.
    """
    variable = f"OTEL_{signal.upper()}_EXPORTER"
    names = [each.strip() for each in os.environ.get(variable, "otlp").split(",")]
    return [_load_exporter(name, signal, variable)() for name in names if name not in ("", "none")]


def _load_exporter(name: str, signal: str, variable: str) -> Any:
    """Load the class of an exporter from the entry points of the installed packages.

    `variable` is the environment variable that names the exporter, for the error if it is not installed.
    """
    known = entry_points(group=f"opentelemetry_{signal}_exporter")
    entry = _otlp_entry() if name == "otlp" else name
    if entry not in known.names:
        offered = ", ".join(sorted({"otlp", "none", *known.names}))
        raise ConfigurationError(
            f"{variable}={name}: this exporter is not installed; install it with {EXTRA}, or use one of: {offered}"
        )
    return known[entry].load()


def _otlp_entry() -> str:
    protocol = os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
    return "otlp_proto_grpc" if protocol == "grpc" else "otlp_proto_http"


def _shut_down(tracers: TracerProvider, meters: MeterProvider) -> None:
    tracers.shutdown()
    meters.shutdown()
