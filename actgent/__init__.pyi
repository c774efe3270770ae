# The names of `__init__.py`, for type checkers.

__version__: str

from .actors.inbox import PriorityInbox as PriorityInbox
from .agents.agent import Agent as Agent
from .agents.agent_builder import AgentBuilder as AgentBuilder, SchemaBuilder as SchemaBuilder
from .agents.bare_agent import BareAgent as BareAgent
from .agents.builtin_agents import (
    ReActAgent as ReActAgent,
    RouterAgent as RouterAgent,
    SimpleAgent as SimpleAgent,
)
from .agents.goal import (
    GoalAgent as GoalAgent,
    GoalResult as GoalResult,
    run_agent as run_agent,
    run_agent_sync as run_agent_sync,
)
from .agents.keyword_argument_types import AgentOptions as AgentOptions, RunOptions as RunOptions
from .agents.model_tools.database_query_tool import database_tool as database_tool
from .agents.model_tools.memory_consolidation import Consolidation as Consolidation
from .agents.model_tools.schedule_tools import scheduling_tools as scheduling_tools
from .agents.pipelines.pipeline import Pipeline as Pipeline
from .agents.pipelines.pipeline_results import PipelineResult as PipelineResult
from .agents.pipelines.pipeline_step import PipelineStep as PipelineStep
from .agents.pipelines.step_conditions import When as When
from .agents.plan_agent import PlanAgent as PlanAgent
from .agents.session import Session as Session
from .agents.steps.steps_agent import StepsAgent as StepsAgent
from .agents.steps.stream_events import (
    FinalEvent as FinalEvent,
    PlanEvent as PlanEvent,
    StepEvent as StepEvent,
    StreamEnd as StreamEnd,
    StreamStart as StreamStart,
    ToolExecutionEvent as ToolExecutionEvent,
    ToolResultsEvent as ToolResultsEvent,
)
from .agents.steps.streamed_run_state import (
    AgentAnswer as AgentAnswer,
    StepState as StepState,
    ToolExecution as ToolExecution,
)
from .agents.teams.agents_as_tools import delegation_tools as delegation_tools
from .agents.teams.cluster_pool_agent_proxy import PoolAgent as PoolAgent
from .agents.teams.handoff import hand_back as hand_back, handoff as handoff
from .approvals import (
    Approval as Approval,
    ApprovalRequest as ApprovalRequest,
    Approve as Approve,
    Edit as Edit,
    Reject as Reject,
    Respond as Respond,
)
from .client.agent_server_client import Client as Client, connect as connect
from .client.remote_agent import RemoteAgent as RemoteAgent
from .client.remote_memory import RemoteLongTermMemory as RemoteLongTermMemory
from .client.remote_session import RemoteSession as RemoteSession
from .database.database import Database as Database
from .definitions.agent_folder import AgentFolder as AgentFolder, read_folder as read_folder
from .definitions.agent_generator import AgentGenerator as AgentGenerator
from .errors import (
    ActgentError as ActgentError,
    ActorFailed as ActorFailed,
    AddressBlocked as AddressBlocked,
    AnswerError as AnswerError,
    ApprovalAlreadyDecided as ApprovalAlreadyDecided,
    ApprovalMismatch as ApprovalMismatch,
    ApprovalNotFound as ApprovalNotFound,
    ApprovalRequired as ApprovalRequired,
    BadRequest as BadRequest,
    ConfigurationError as ConfigurationError,
    ContentFiltered as ContentFiltered,
    ContextOverflow as ContextOverflow,
    DatabaseFailed as DatabaseFailed,
    DeadLetterGone as DeadLetterGone,
    DeadlineExceeded as DeadlineExceeded,
    DeadlockDetected as DeadlockDetected,
    DepsMissing as DepsMissing,
    DuplicateMessage as DuplicateMessage,
    DuplicateTool as DuplicateTool,
    EmptyAnswer as EmptyAnswer,
    FeedLagged as FeedLagged,
    Fenced as Fenced,
    GuardrailTripped as GuardrailTripped,
    HandlerFailed as HandlerFailed,
    HTTPToolError as HTTPToolError,
    InboxFull as InboxFull,
    Interrupted as Interrupted,
    InvalidArguments as InvalidArguments,
    InvalidCursor as InvalidCursor,
    InvalidFile as InvalidFile,
    InvalidFolder as InvalidFolder,
    InvalidState as InvalidState,
    InvalidToolResult as InvalidToolResult,
    InvalidToolSchema as InvalidToolSchema,
    JournalDamaged as JournalDamaged,
    JournalError as JournalError,
    JournalFailed as JournalFailed,
    JournalFull as JournalFull,
    JournalKeyError as JournalKeyError,
    JournalSlow as JournalSlow,
    JournalVersion as JournalVersion,
    LimitReached as LimitReached,
    MemoriesFailed as MemoriesFailed,
    MemoriesFull as MemoriesFull,
    MemoryNotFound as MemoryNotFound,
    MemoryReplaced as MemoryReplaced,
    MessageTooLarge as MessageTooLarge,
    MissingKey as MissingKey,
    ModeChangeRejected as ModeChangeRejected,
    ModelError as ModelError,
    ModelTimeout as ModelTimeout,
    NotAuthorized as NotAuthorized,
    NotRunning as NotRunning,
    NotSerializable as NotSerializable,
    NotSuspended as NotSuspended,
    OutcomeUnknown as OutcomeUnknown,
    OutsideTrio as OutsideTrio,
    ParseError as ParseError,
    PermissionDenied as PermissionDenied,
    PortalClosed as PortalClosed,
    PriceUnknown as PriceUnknown,
    ProviderUnavailable as ProviderUnavailable,
    QuotaExhausted as QuotaExhausted,
    RateLimited as RateLimited,
    Refusal as Refusal,
    RemoteError as RemoteError,
    ServerUnreachable as ServerUnreachable,
    SessionBusy as SessionBusy,
    SessionClosed as SessionClosed,
    SessionExists as SessionExists,
    SessionMoved as SessionMoved,
    SessionNotFound as SessionNotFound,
    Stopped as Stopped,
    StreamInterrupted as StreamInterrupted,
    Suspended as Suspended,
    ThreadPoolExhausted as ThreadPoolExhausted,
    ThreadsStillRunning as ThreadsStillRunning,
    ToolError as ToolError,
    ToolNotFound as ToolNotFound,
    ToolsetUnavailable as ToolsetUnavailable,
    ToolTimeout as ToolTimeout,
    TooManySchedules as TooManySchedules,
    TruncatedAnswer as TruncatedAnswer,
    UnsupportedPart as UnsupportedPart,
    UsageError as UsageError,
    UserCodeExit as UserCodeExit,
    WireError as WireError,
    WouldDeadlock as WouldDeadlock,
    WrongOwner as WrongOwner,
)
from .information_flow_labels import Label as Label, Labelled as Labelled, Policy as Policy
from .journal.journal_interface import SessionSummary as SessionSummary
from .limits_and_schedules.limits import Limits as Limits
from .limits_and_schedules.quotas import Quotas as Quotas
from .limits_and_schedules.schedule import Schedule as Schedule
from .llm.clients.anthropic import Anthropic as Anthropic
from .llm.clients.openai import OpenAI as OpenAI
from .llm.clients.openai_responses import OpenAIResponses as OpenAIResponses
from .llm.fallback_model import FallbackModel as FallbackModel
from .llm.model_interface import (
    LLM as LLM,
    ModelRequest as ModelRequest,
    ModelResponse as ModelResponse,
    ResponseFormat as ResponseFormat,
)
from .llm.model_resolution import register_provider as register_provider
from .llm.rate_limiting import RateLimiter as RateLimiter
from .llm.retry_policy import Retry as Retry
from .llm.scripted_model import ScriptedLLM as ScriptedLLM
from .llm.wrapper_models import (
    CachedModel as CachedModel,
    RateLimitedModel as RateLimitedModel,
    RetryingModel as RetryingModel,
)
from .memory.history_processors.semantic_compression import (
    RelevanceFilter as RelevanceFilter,
    SemanticCompression as SemanticCompression,
    TimeDecay as TimeDecay,
)
from .memory.history_processors.truncation import Truncation as Truncation
from .memory.longterm.long_term_memory import LongTermMemory as LongTermMemory
from .memory.longterm.memory_records import (
    Association as Association,
    MemoryFilter as MemoryFilter,
    MemoryMatch as MemoryMatch,
    MemoryOwnerPage as MemoryOwnerPage,
    MemoryPage as MemoryPage,
    MemoryRecord as MemoryRecord,
)
from .memory.memory_interface import Memory as Memory, ModelView as ModelView
from .memory.short_term_memory import ShortTermMemory as ShortTermMemory
from .memory.sliding_window import SlidingWindow as SlidingWindow
from .memory.summarizing_memory import SummarizingMemory as SummarizingMemory
from .messages import (
    CallProgress as CallProgress,
    ChatMessage as ChatMessage,
    Event as Event,
    Failure as Failure,
    File as File,
    Image as Image,
    Message as Message,
    Priority as Priority,
    Refuse as Refuse,
    Reply as Reply,
    Route as Route,
    Sender as Sender,
    Text as Text,
    Thinking as Thinking,
    Token as Token,
    ToolCall as ToolCall,
    ToolResult as ToolResult,
    ToolSpec as ToolSpec,
    Usage as Usage,
)
from .modes.mode import Mode as Mode
from .modes.tool_permissions_by_mode import Modes as Modes
from .portal.asyncio_client import AsyncPortalClient as AsyncPortalClient
from .portal.asyncio_portal import (
    AsyncPortal as AsyncPortal,
    AsyncPortalAgent as AsyncPortalAgent,
    AsyncPortalSession as AsyncPortalSession,
)
from .portal.portal_context_manager import open_portal as open_portal
from .portal.portal_streams import AsyncPortalStream as AsyncPortalStream, PortalStream as PortalStream
from .portal.sync_client import PortalClient as PortalClient
from .portal.sync_portal import Portal as Portal, PortalAgent as PortalAgent, PortalSession as PortalSession
from .protocols.conversation_rendering import (
    conversation_text as conversation_text,
    tool_documentation as tool_documentation,
)
from .protocols.goal.goal_decision_parsing import CustomAction as CustomAction
from .protocols.goal.goal_progress import detect_action_loop as detect_action_loop
from .protocols.prompt_rendering import PromptManager as PromptManager
from .protocols.protocol_interface import (
    CallTools as CallTools,
    ClassificationType as ClassificationType,
    Classifier as Classifier,
    Continue as Continue,
    Fail as Fail,
    Finish as Finish,
    Instruction as Instruction,
    Profile as Profile,
    PromptTemplate as PromptTemplate,
    Protocol as Protocol,
    Request as Request,
    SendReply as SendReply,
    TurnView as TurnView,
    UpdateState as UpdateState,
)
from .runtime.agent_directory import AgentCard as AgentCard
from .runtime.runtime import Runtime as Runtime, open_runtime as open_runtime
from .runtime.session_erasure import Retention as Retention
from .session_index.search_and_trend_queries import (
    SearchFilter as SearchFilter,
    SearchHit as SearchHit,
    SearchPage as SearchPage,
    Trend as Trend,
    Trends as Trends,
)
from .state.session_state import Store as Store
from .structured_output.extract_json import extract_only as extract_only
from .tools.function_tool import FunctionTool as FunctionTool, tool as tool
from .tools.outputs.json_result_envelope import EnvelopedTool as EnvelopedTool
from .tools.tool_interface import Tool as Tool, ToolContext as ToolContext, ToolHooks as ToolHooks
from .tools.tool_registry import ToolRegistry as ToolRegistry
from .toolsets.http.api_credentials import (
    APIKey as APIKey,
    Basic as Basic,
    Bearer as Bearer,
    Credentials as Credentials,
)
from .toolsets.http.http_tool import HTTPTool as HTTPTool, api_tool as api_tool
from .toolsets.http.internal_address_blocking import Guard as Guard
from .toolsets.mcp.server_config_file import mcp_servers as mcp_servers
from .toolsets.mcp.server_toolset import MCPServer as MCPServer
from .toolsets.openapi.toolset import OpenAPI as OpenAPI
from .toolsets.tool_discovery import Discovery as Discovery, discover as discover
from .toolsets.toolset import (
    Deferred as Deferred,
    StaticToolset as StaticToolset,
    Toolset as Toolset,
    open_toolset as open_toolset,
)
from .turns.agent_core import AgentCore as AgentCore
from .web.access_tokens import AccessToken as AccessToken
from .web.gateway import open_gateway as open_gateway
from .web.gateway_interface import Gateway as Gateway
from .web.gateway_limits import GatewayLimits as GatewayLimits
from .web.webhooks.signatures import new_webhook_secret as new_webhook_secret
from .web.webhooks.webhook import Webhook as Webhook
