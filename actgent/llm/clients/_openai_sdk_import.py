"""Import of the OpenAI SDK. Importing this module takes about a second and 60 MB."""

from typing import Any

import openai

from actgent.llm.http.provider_sdk_client_and_token_counter import Sdk, set_platform


def make_sdk(**options: Any) -> Sdk:
    """Create an OpenAI SDK client without retries, because actgent retries. `options` are those of the client."""
    client = openai.AsyncOpenAI(max_retries=0, **options)
    set_platform(client)
    return Sdk(client, openai.OpenAIError, openai.APITimeoutError)
