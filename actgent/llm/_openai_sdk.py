"""The OpenAI SDK. Importing this module takes about a second and 60 MB."""

from typing import Any

import openai
from openai._base_client import get_platform

from .http import Sdk


def connect(**options: Any) -> Sdk:
    """An SDK client that never repeats a request by itself."""
    client = openai.AsyncOpenAI(max_retries=0, **options)
    # The SDK would look this up in a thread at the first call, and a mock clock would jump meanwhile.
    client._platform = get_platform()  # noqa: SLF001 - the one way to say it
    return Sdk(client, openai.OpenAIError, openai.APITimeoutError)
