"""LLM agents as actors on trio: the names that programs use, each loaded at its first use. docs/help/glossary.md has the terms."""

import gc
import importlib
from collections.abc import Iterator
from contextlib import contextmanager

# Type checkers read the same names in `__init__.pyi`; tests/test_repository.py holds the two together.
_NAMES = {
    "errors": (
        "PermissionDenied",
        "ActgentError",
        "AddressBlocked",
        "ActorFailed",
        "DuplicateMessage",
        "ApprovalAlreadyDecided",
        "AnswerError",
        "ApprovalMismatch",
        "ApprovalNotFound",
        "ApprovalRequired",
        "BadRequest",
        "StreamInterrupted",
        "ConfigurationError",
        "ContentFiltered",
        "ContextOverflow",
        "InvalidCursor",
        "DatabaseFailed",
        "DeadLetterGone",
        "DeadlineExceeded",
        "DepsMissing",
        "DuplicateTool",
        "EmptyAnswer",
        "FeedLagged",
        "Fenced",
        "UserCodeExit",
        "GuardrailTripped",
        "HandlerFailed",
        "InboxFull",
        "Interrupted",
        "InvalidArguments",
        "InvalidFile",
        "InvalidFolder",
        "InvalidState",
        "InvalidToolSchema",
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
        "MessageTooLarge",
        "MissingKey",
        "ModeChangeRejected",
        "ModelError",
        "ModelTimeout",
        "ThreadPoolExhausted",
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
        "HTTPToolError",
        "ServerUnreachable",
        "SessionBusy",
        "SessionClosed",
        "SessionExists",
        "SessionMoved",
        "SessionNotFound",
        "Stopped",
        "Suspended",
        "ThreadsStillRunning",
        "ToolError",
        "ToolNotFound",
        "ToolTimeout",
        "ToolsetUnavailable",
        "TooManySchedules",
        "TruncatedAnswer",
        "UnsupportedPart",
        "InvalidToolResult",
        "UsageError",
        "DeadlockDetected",
        "WireError",
        "WouldDeadlock",
        "WrongOwner",
    ),
    "approvals": ("Approval", "Approve", "ApprovalRequest", "Edit", "Reject", "Respond"),
    "information_flow_labels": ("Label", "Labelled", "Policy"),
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
    "turns.agent_core": ("AgentCore",),
    "agents.pipelines.step_conditions": ("When",),
    "agents.pipelines.pipeline_results": ("PipelineResult",),
    "agents.pipelines.pipeline": ("Pipeline",),
    "agents.pipelines.pipeline_step": ("PipelineStep",),
    "agents.plan_agent": ("PlanAgent",),
    "agents.teams.cluster_pool_agent_proxy": ("PoolAgent",),
    "agents.keyword_argument_types": ("AgentOptions", "RunOptions"),
    "agents.bare_agent": ("BareAgent",),
    "agents.builtin_agents": ("ReActAgent", "RouterAgent", "SimpleAgent"),
    "agents.agent_builder": ("AgentBuilder", "SchemaBuilder"),
    "agents.teams.agents_as_tools": ("delegation_tools",),
    "agents.teams.handoff": ("hand_back", "handoff"),
    "client.remote_agent": ("RemoteAgent",),
    "client.remote_memory": ("RemoteLongTermMemory",),
    "client.agent_server_client": ("Client", "connect"),
    "client.remote_session": ("RemoteSession",),
    "database.database": ("Database",),
    "definitions.agent_generator": ("AgentGenerator",),
    "definitions.agent_folder": ("AgentFolder", "read_folder"),
    "journal.journal_interface": ("SessionSummary",),
    "session_index.search_and_trend_queries": ("SearchFilter", "SearchHit", "SearchPage", "Trend", "Trends"),
    "runtime.agent_directory": ("AgentCard",),
    "protocols.goal.goal_decision_parsing": ("CustomAction",),
    "protocols.goal.goal_progress": ("detect_action_loop",),
    "protocols.conversation_rendering": ("conversation_text", "tool_documentation"),
    "state.session_state": ("Store",),
    "agents.goal": ("GoalAgent", "GoalResult", "run_agent", "run_agent_sync"),
    "limits_and_schedules.limits": ("Limits",),
    "limits_and_schedules.quotas": ("Quotas",),
    "limits_and_schedules.schedule": ("Schedule",),
    "modes.mode": ("Mode",),
    "modes.tool_permissions_by_mode": ("Modes",),
    "runtime.session_erasure": ("Retention",),
    "runtime.runtime": ("Runtime", "open_runtime"),
    "agents.model_tools.memory_consolidation": ("Consolidation",),
    "agents.model_tools.database_query_tool": ("database_tool",),
    "agents.model_tools.schedule_tools": ("scheduling_tools",),
    "agents.session": ("Session",),
    "agents.steps.steps_agent": ("StepsAgent",),
    "agents.steps.streamed_run_state": ("AgentAnswer", "StepState", "ToolExecution"),
    "agents.steps.stream_events": (
        "FinalEvent",
        "PlanEvent",
        "StepEvent",
        "StreamEnd",
        "StreamStart",
        "ToolExecutionEvent",
        "ToolResultsEvent",
    ),
    "llm.clients.anthropic": ("Anthropic",),
    "llm.model_interface": ("LLM", "ModelResponse", "ModelRequest", "ResponseFormat"),
    "llm.fallback_model": ("FallbackModel",),
    "llm.rate_limiting": ("RateLimiter",),
    "llm.clients.openai": ("OpenAI",),
    "llm.clients.openai_responses": ("OpenAIResponses",),
    "llm.model_resolution": ("register_provider",),
    "llm.wrapper_models": ("CachedModel", "RateLimitedModel", "RetryingModel"),
    "llm.retry_policy": ("Retry",),
    "llm.scripted_model": ("ScriptedLLM",),
    "portal.sync_portal": ("Portal", "PortalAgent", "PortalSession"),
    "portal.asyncio_portal": ("AsyncPortal", "AsyncPortalAgent", "AsyncPortalSession"),
    "portal.portal_context_manager": ("open_portal",),
    "portal.sync_client": ("PortalClient",),
    "portal.asyncio_client": ("AsyncPortalClient",),
    "portal.portal_streams": ("AsyncPortalStream", "PortalStream"),
    "memory.memory_interface": ("Memory", "ModelView"),
    "memory.history_processors.semantic_compression": ("RelevanceFilter", "SemanticCompression", "TimeDecay"),
    "memory.longterm.long_term_memory": ("LongTermMemory",),
    "memory.longterm.memory_records": (
        "Association",
        "MemoryFilter",
        "MemoryMatch",
        "MemoryOwnerPage",
        "MemoryPage",
        "MemoryRecord",
    ),
    "memory.short_term_memory": ("ShortTermMemory",),
    "memory.sliding_window": ("SlidingWindow",),
    "memory.summarizing_memory": ("SummarizingMemory",),
    "memory.history_processors.truncation": ("Truncation",),
    "protocols.protocol_interface": (
        "CallTools",
        "UpdateState",
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
        "SendReply",
        "TurnView",
    ),
    "protocols.prompt_rendering": ("PromptManager",),
    "structured_output.extract_json": ("extract_only",),
    "tools.tool_interface": ("Tool", "ToolContext", "ToolHooks"),
    "tools.outputs.json_result_envelope": ("EnvelopedTool",),
    "tools.function_tool": ("FunctionTool", "tool"),
    "tools.tool_registry": ("ToolRegistry",),
    "toolsets.tool_discovery": ("Discovery", "discover"),
    "toolsets.http.api_credentials": ("APIKey", "Basic", "Bearer", "Credentials"),
    "toolsets.http.internal_address_blocking": ("Guard",),
    "toolsets.http.http_tool": ("HTTPTool", "api_tool"),
    "toolsets.mcp.server_config_file": ("mcp_servers",),
    "toolsets.mcp.server_toolset": ("MCPServer",),
    "toolsets.openapi.toolset": ("OpenAPI",),
    "toolsets.toolset": ("Deferred", "StaticToolset", "Toolset", "open_toolset"),
    "web.gateway_limits": ("GatewayLimits",),
    "web.gateway": ("open_gateway",),
    "web.gateway_interface": ("Gateway",),
    "web.access_tokens": ("AccessToken",),
    "web.webhooks.signatures": ("new_webhook_secret",),
    "web.webhooks.webhook": ("Webhook",),
}
_HOMES = {name: f"{__name__}.{module}" for module, names in _NAMES.items() for name in names}

__all__ = sorted(_HOMES)  # noqa: PLE0605 - sorted() returns a list, which ruff does not infer


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        if name == "__version__":
            return _version()
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{_hint(name)}")
    with _paused_gc():
        _show_errors_here()
        value = globals()[name] = getattr(importlib.import_module(home), name)
    return value


@contextmanager
def _paused_gc() -> Iterator[None]:
    """Disable the garbage collector while modules are imported.

    Imports leave hardly any garbage, and the collector takes a fifth of their time. Afterwards `freeze` and `unfreeze` move
    the new objects to the oldest generation, so that the next collection does not scan them (30 ms).
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            if not gc.get_freeze_count():
                gc.freeze()
                gc.unfreeze()
            gc.enable()


def _version() -> str:
    from importlib.metadata import version  # noqa: PLC0415 - importing it takes 10 ms, and few programs need the version

    return version(__name__)


def _hint(name: str) -> str:
    from difflib import get_close_matches  # noqa: PLC0415 - needed only for this error

    close = () if name.startswith("_") else get_close_matches(name, _HOMES, 1)
    return f": did you mean {close[0]}?" if close else ""


def _show_errors_here() -> None:
    """Set `__module__` of the errors, so that tracebacks show `actgent.InboxFull`, the name to catch."""
    errors = importlib.import_module(f"{__name__}.errors")
    for name in _NAMES["errors"]:
        getattr(errors, name).__module__ = __name__


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
