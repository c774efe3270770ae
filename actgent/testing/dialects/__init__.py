"""The wires that the provider on loopback speaks, without any I/O, and what each of them refuses."""

from .anthropic_messages import AnthropicDialect
from .anthropic_rules import check_anthropic_messages, check_anthropic_request
from .exchange import (
    Dialect,
    MalformedRequest,
    Pace,
    Plan,
    ProviderRequest,
    answer_plan,
    error_plan,
    to_answer,
    usage_of,
)
from .openai_chat import OpenAIChatDialect
from .openai_responses import OpenAIResponsesDialect
from .openai_rules import (
    check_chat_messages,
    check_chat_request,
    check_responses_input,
    check_responses_request,
)
from .rules import Problems, Turn, adjacent_pairs, merged, no_prefill, unique_calls

__all__ = [
    "AnthropicDialect",
    "Dialect",
    "MalformedRequest",
    "OpenAIChatDialect",
    "OpenAIResponsesDialect",
    "Pace",
    "Plan",
    "Problems",
    "ProviderRequest",
    "Turn",
    "adjacent_pairs",
    "answer_plan",
    "check_anthropic_messages",
    "check_anthropic_request",
    "check_chat_messages",
    "check_chat_request",
    "check_responses_input",
    "check_responses_request",
    "error_plan",
    "merged",
    "no_prefill",
    "to_answer",
    "unique_calls",
    "usage_of",
]
