"""Provider APIs of the loopback provider, without I/O, and their request validation."""

from collections.abc import Mapping

from .anthropic_messages import AnthropicMessagesAPI
from .openai_chat import OpenAIChatAPI
from .openai_responses import OpenAIResponsesAPI
from .provider_api_interface import (
    MalformedRequest,
    Pace,
    ProviderAPI,
    ProviderRequest,
    ReplyPlan,
    answer_plan,
    error_plan,
    json_plan,
    to_answer,
    tokens_of,
    usage_of,
)
from .transcript_rules import Problems, TranscriptTurn, adjacent_pairs, merged, no_prefill, unique_calls

PROVIDER_APIS: Mapping[str, ProviderAPI] = {
    dialect.name: dialect for dialect in (OpenAIChatAPI(), OpenAIResponsesAPI(), AnthropicMessagesAPI())
}
"""Provider APIs of the loopback provider, by name."""

__all__ = [
    "PROVIDER_APIS",
    "AnthropicMessagesAPI",
    "MalformedRequest",
    "OpenAIChatAPI",
    "OpenAIResponsesAPI",
    "Pace",
    "Problems",
    "ProviderAPI",
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
