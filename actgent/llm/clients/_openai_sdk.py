"""The OpenAI SDK. Importing this module takes about a second and 60 MB."""

from typing import Any

import openai
from openai._base_client import get_platform

from actgent.llm.http import Sdk, set_platform


def make_sdk(**options: Any) -> Sdk:
    """An SDK client that never repeats a request by itself."""
    client = openai.AsyncOpenAI(max_retries=0, **options)
    set_platform(client, get_platform())
    return Sdk(client, openai.OpenAIError, openai.APITimeoutError)
