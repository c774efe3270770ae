"""Clients of the providers whose API is compatible with OpenAI chat completions; the table is in `provider_table.py`."""

import functools
import hashlib
import os
from typing import cast

from actgent.errors import ConfigurationError
from actgent.llm.http.api_keys import find_url
from actgent.llm.http.wire_encoding import Body
from actgent.llm.model_interface import ModelRequest

from .openai import OpenAI
from .provider_table import COMPATIBLE, CompatibleProvider

_REGION = "us-east-1"
"""Region if neither AWS_REGION nor AWS_DEFAULT_REGION is set."""
_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


class Compatible(OpenAI):
    """Base class of the clients of OpenAI-compatible providers. `client_class` creates the class of a provider."""

    row: CompatibleProvider

    def encode(self, chat: ModelRequest) -> Body:
        body = super().encode(chat)
        if self.row.id_length:
            body["messages"] = [_with_short_ids(message, self.row.id_length) for message in body["messages"]]
        return body

    def _limit_field(self) -> str:
        return self.row.limit

    def stream_fields(self) -> Body:
        return super().stream_fields() if self.row.has_stream_options else {"stream": True}

    def _url(self, argument: str | None) -> str:
        region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or _REGION
        default = self.row.address.replace("REGION", region)
        variables = (*self.url_variables, "LLM_PROVIDER_URL")
        if argument is None and not (default or any(os.environ.get(name, "").strip() for name in variables)):
            raise ConfigurationError(
                f"{self.row.title} requires the URL of your resource, such as {self.row.example}: "
                f"pass base_url=..., or set {' or '.join(self.url_variables)}"
            )
        url = find_url(argument, variables, default=default)
        return url if url.endswith("/v1") else url + self.row.path

    def __repr__(self) -> str:
        return f"<{self.row.title} model {self.model!r}>"


@functools.cache
def client_class(provider: str) -> type[Compatible]:
    """Return the client class of a provider in the table. Classes are cached."""
    row = COMPATIBLE[provider]
    fields = {"provider": provider, "row": row, "key_variables": row.key, "url_variables": row.url}
    return cast("type[Compatible]", type(f"Compatible[{provider}]", (Compatible,), fields))


def _with_short_ids(message: Body, length: int) -> Body:
    """Replace the tool call ids in an encoded message by ids of `length` letters and digits. Equal ids stay equal."""
    if "tool_call_id" in message:
        return {**message, "tool_call_id": _shorten_call_id(message["tool_call_id"], length)}
    if "tool_calls" in message:
        calls = [{**call, "id": _shorten_call_id(call["id"], length)} for call in message["tool_calls"]]
        return {**message, "tool_calls": calls}
    return message


def _shorten_call_id(call_id: str, length: int) -> str:
    if len(call_id) == length and call_id.isascii() and call_id.isalnum():
        return call_id
    number = int.from_bytes(hashlib.sha256(call_id.encode()).digest())
    return "".join(_ALPHABET[number // 62**place % 62] for place in range(length))
