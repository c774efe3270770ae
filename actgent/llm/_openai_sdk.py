"""The OpenAI SDK. Importing this module takes about a second and 60 MB."""

from typing import Any

import openai

from .remote import Sdk


def connect(**options: Any) -> Sdk:
    """An SDK client that never repeats a request by itself."""
    client = openai.AsyncOpenAI(max_retries=0, **options)
    return Sdk(client, openai.OpenAIError, openai.APITimeoutError)
