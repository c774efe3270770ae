"""The wires that the provider on loopback speaks, without any I/O, and what each of them refuses."""

from collections.abc import Mapping

from .anthropic_messages import AnthropicDialect
from .exchange import (
    Dialect,
    MalformedRequest,
    Pace,
    ProviderRequest,
    ReplyPlan,
    answer_plan,
    error_plan,
    json_plan,
    to_answer,
    tokens_of,
    usage_of,
)
from .openai_chat import OpenAIChatDialect
from .openai_responses import OpenAIResponsesDialect
from .rules import Problems, TranscriptTurn, adjacent_pairs, merged, no_prefill, unique_calls

DIALECTS: Mapping[str, Dialect] = {
    dialect.name: dialect for dialect in (OpenAIChatDialect(), OpenAIResponsesDialect(), AnthropicDialect())
}
"""All of them, by name; `dialect_of` says which one a provider speaks."""

__all__ = [
    "DIALECTS",
    "AnthropicDialect",
    "Dialect",
    "MalformedRequest",
    "OpenAIChatDialect",
    "OpenAIResponsesDialect",
    "Pace",
    "Problems",
    "ProviderRequest",
    "ReplyPlan",
    "TranscriptTurn",
    "adjacent_pairs",
    "answer_plan",
    "error_plan",
    "json_plan",
    "merged",
    "no_prefill",
    "to_answer",
    "tokens_of",
    "unique_calls",
    "usage_of",
]
