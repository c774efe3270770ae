"""OpenTelemetry spans and metrics of a runtime. Needs the extra `otel`."""

from actgent.errors import ConfigurationError

try:
    from .opentelemetry_tracing import Telemetry
except ModuleNotFoundError as _missing:
    raise ConfigurationError(
        f"package {_missing.name} is not installed; telemetry needs the extra: pip install 'actgent[otel]'"
    ) from None

__all__ = ["Telemetry"]
