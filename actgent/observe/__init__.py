"""OpenTelemetry spans and metrics of a runtime. Needs the extra `otel`."""

from actgent.errors import ConfigurationError

try:
    from .opentelemetry_tracing import Telemetry
except ModuleNotFoundError as _missing:
    raise ConfigurationError(
        f"telemetry requires the package {_missing.name}, which is not installed: pip install 'actgent[otel]'"
    ) from None

__all__ = ["Telemetry"]
