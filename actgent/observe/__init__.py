"""What goes on in a runtime, for those who run it: spans and metrics of OpenTelemetry.

Needs the extra `otel`.
"""

from actgent.errors import ConfigurationError

try:
    from .telemetry import Telemetry
except ModuleNotFoundError as _missing:
    raise ConfigurationError(f"telemetry needs {_missing.name}: install actgent[otel]") from None

__all__ = ["Telemetry"]
