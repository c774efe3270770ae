"""Import of the Anthropic SDK. Importing this module takes about a second and 60 MB."""

from collections.abc import Mapping
from typing import Any

import anthropic

from actgent.llm.http.provider_sdk_client_and_token_counter import Sdk, set_platform


def make_sdk(**options: Any) -> Sdk:
    """Create an Anthropic SDK client with `options`, without the retries and the tracing of the SDK, because actgent does both."""
    client = anthropic.AsyncAnthropic(max_retries=0, open_telemetry=False, **options)
    set_platform(client)
    return Sdk(client, anthropic.AnthropicError, anthropic.APITimeoutError)


def closed_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Rewrite a JSON Schema in the form that Anthropic enforces: closed objects, and unsupported limits as descriptions."""
    return anthropic.transform_schema(dict(schema))
