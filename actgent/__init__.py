"""LLM agents as actors on trio: the names that programs use, each loaded when it is first asked for."""

import importlib

# Type checkers read the same names in `__init__.pyi`; tests/test_repository.py holds the two together.
_NAMES = {
    "errors": (
        "AccessRefused",
        "ActgentError",
        "AddressRefused",
        "ActorFailed",
        "AlreadyAnswered",
        "AlreadyDecided",
        "AnswerError",
        "ApprovalMismatch",
        "ApprovalNotFound",
        "AskPerson",
        "BadRequest",
        "BrokenAnswer",
        "BrokerLost",
        "ConfigurationError",
        "ContentFiltered",
        "ContextOverflow",
        "CursorUnknown",
        "DeadLetterGone",
        "DeadlineExceeded",
        "DepsMissing",
        "DuplicateTool",
        "EmptyAnswer",
        "FeedLagged",
        "Fenced",
        "ForeignExit",
        "GuardRefused",
        "HandlerFailed",
        "InboxFull",
        "Interrupted",
        "InvalidArguments",
        "InvalidFile",
        "InvalidFolder",
        "JournalDamaged",
        "JournalError",
        "JournalFailed",
        "JournalFull",
        "JournalKeyError",
        "JournalSlow",
        "JournalVersion",
        "LimitReached",
        "MemoriesFailed",
        "MemoriesFull",
        "MemoryNotFound",
        "MemoryReplaced",
        "MissingKey",
        "ModeRefused",
        "ModelError",
        "ModelTimeout",
        "NoThread",
        "NotAuthorized",
        "NotRunning",
        "NotSerializable",
        "OutcomeUnknown",
        "NotSuspended",
        "OutsideTrio",
        "ParseError",
        "PortalClosed",
        "PriceUnknown",
        "ProviderUnavailable",
        "QuotaExhausted",
        "RateLimited",
        "Refusal",
        "RemoteError",
        "RequestFailed",
        "ServerUnreachable",
        "SessionBusy",
        "SessionClosed",
        "SessionExists",
        "SessionNotFound",
        "Stopped",
        "Suspended",
        "ThreadsLeft",
        "ToolError",
        "ToolNotFound",
        "ToolTimeout",
        "ToolsetUnavailable",
        "TooManySchedules",
        "TruncatedAnswer",
        "UnsupportedPart",
        "UnusableResult",
        "UsageError",
        "WaitCycle",
        "WireError",
        "WouldDeadlock",
        "WrongOwner",
    ),
    "approvals": ("Approval", "Approve", "Ask", "Edit", "Reject", "Respond"),
    "messages": (
        "CallProgress",
        "ChatMessage",
        "Event",
        "Failure",
        "File",
        "Image",
        "Message",
        "Priority",
        "Refuse",
        "Reply",
        "Route",
        "Sender",
        "Text",
        "Thinking",
        "Token",
        "ToolCall",
        "ToolResult",
        "ToolSpec",
        "Usage",
    ),
    "actors.inbox": ("PriorityInbox",),
    "agents.agent": ("Agent",),
    "turns.core": ("AgentCore",),
    "agents.plan": ("PlanAgent",),
    "agents.options": ("AgentOptions", "RunOptions"),
    "agents.presets": ("BareAgent", "ReActAgent", "RouterAgent", "SimpleAgent"),
    "agents.builder": ("AgentBuilder", "SchemaBuilder"),
    "agents.teams.agent_tools": ("delegation_tools",),
    "agents.teams.handoff": ("hand_back", "handoff"),
    "client.agent": ("RemoteAgent",),
    "client.connecting": ("Client", "connect"),
    "client.session": ("RemoteSession",),
    "journal.base": ("SessionSummary",),
    "runtime.directory": ("AgentCard",),
    "agents.goal": ("GoalAgent", "GoalResult", "run_agent"),
    "control.limits": ("Limits",),
    "control.quotas": ("Quotas",),
    "control.schedule": ("Schedule",),
    "modes.mode": ("Mode",),
    "modes.modes": ("Modes",),
    "runtime.retention": ("Retention",),
    "runtime.runtime": ("Runtime", "open_runtime"),
    "agents.model_tools.consolidation": ("Consolidation",),
    "agents.model_tools.schedule_tools": ("scheduling_tools",),
    "agents.session": ("Session",),
    "agents.steps.agent": ("StepsAgent",),
    "llm.clients.anthropic": ("Anthropic",),
    "llm.base": ("LLM", "Answer", "Chat", "ResponseFormat"),
    "llm.fallback": ("Fallback",),
    "llm.governed": ("Governed",),
    "llm.governor": ("Governor",),
    "llm.clients.openai": ("OpenAI",),
    "llm.clients.openai_responses": ("OpenAIResponses",),
    "llm.scripted": ("ScriptedLLM",),
    "portal.blocking": ("Portal", "PortalAgent", "PortalSession"),
    "portal.cooperative": ("AsyncPortal", "AsyncPortalAgent", "AsyncPortalSession"),
    "portal.opening": ("open_portal",),
    "portal.remote_blocking": ("PortalClient",),
    "portal.remote_cooperative": ("AsyncPortalClient",),
    "portal.streams": ("AsyncPortalStream", "PortalStream"),
    "memory.base": ("Memory", "ModelView"),
    "memory.decay": ("Relevance", "TimeDecay"),
    "memory.longterm": ("Association", "Memories", "MemoryFilter", "MemoryUnit", "Recalled"),
    "memory.short_term": ("ShortTermMemory",),
    "memory.sliding": ("SlidingWindow",),
    "memory.summarizing": ("Summarizing",),
    "protocols.base": (
        "CallTools",
        "Change",
        "ClassificationType",
        "Classifier",
        "Continue",
        "Fail",
        "Finish",
        "Instruction",
        "Profile",
        "PromptTemplate",
        "Protocol",
        "Request",
        "Say",
        "View",
    ),
    "protocols.prompts": ("PromptManager",),
    "structured.extract": ("extract_only",),
    "tools.base": ("Tool", "ToolContext", "ToolHooks"),
    "tools.outputs.envelope": ("EnvelopedTool",),
    "tools.function": ("FunctionTool", "tool"),
    "tools.registry": ("ToolRegistry",),
    "toolsets.deferred": ("Deferred",),
    "toolsets.discovery": ("Discovery", "discover"),
    "toolsets.http.auth": ("APIKey", "Basic", "Bearer", "Credentials"),
    "toolsets.http.guard": ("Guard",),
    "toolsets.http.tool": ("HTTPTool", "api_tool"),
    "toolsets.mcp.config": ("mcp_servers",),
    "toolsets.mcp.server": ("MCPServer",),
    "toolsets.openapi.toolset": ("OpenAPI",),
    "toolsets.toolset": ("StaticToolset", "Toolset", "open_toolset"),
    "web.bounds": ("GatewayLimits",),
    "web.opening": ("Gateway", "open_gateway"),
    "web.tokens": ("AccessToken",),
    "web.webhooks.signing": ("new_webhook_secret",),
    "web.webhooks.webhook": ("Webhook",),
}
_HOMES = {name: f"{__name__}.{module}" for module, names in _NAMES.items() for name in names}

__all__ = sorted(_HOMES)  # noqa: PLE0605 - a list, as it should be


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        if name == "__version__":
            return _version()
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{_hint(name)}")
    _show_errors_here()
    value = globals()[name] = getattr(importlib.import_module(home), name)
    return value


def _version() -> str:
    from importlib.metadata import version  # noqa: PLC0415 - who never asks for it does not wait for it

    return version(__name__)


def _hint(name: str) -> str:
    from difflib import get_close_matches  # noqa: PLC0415 - likewise

    close = () if name.startswith("_") else get_close_matches(name, _HOMES, 1)
    return f": did you mean {close[0]}?" if close else ""


def _show_errors_here() -> None:
    """Let tracebacks say `actgent.InboxFull`, the name by which it is caught."""
    errors = importlib.import_module(f"{__name__}.errors")
    for name in _NAMES["errors"]:
        getattr(errors, name).__module__ = __name__


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
