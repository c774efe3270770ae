"""Names of spans, attributes and metrics: of the OpenTelemetry GenAI conventions, and of actgent.

Names with the prefix `gen_ai.` follow the semantic conventions for generative AI in the version `CONVENTIONS`. The
conventions are in development, so names may change; the changelog lists each change.
"""

CONVENTIONS = "opentelemetry/semantic-conventions-genai, as in opentelemetry-util-genai 1.3b0 of October 2026"
"""Source and version of the `gen_ai.` names.

The release v0.1.0 of the conventions also renames the metrics of model calls, to `gen_ai.client.inference.`. The
instrumentations of OpenTelemetry do not use these names yet, and neither do dashboards.
"""

# --- span operations ------------------------------------------------------------------------

INVOKE_AGENT = "invoke_agent"
CHAT = "chat"
EXECUTE_TOOL = "execute_tool"
INVOKE_WORKFLOW = "invoke_workflow"
"""Operation name of a turn of a pipeline."""
PLAN = "plan"
"""Operation name of a model call that makes or changes a plan."""
EMBEDDINGS = "embeddings"
CREATE_MEMORY = "create_memory"
UPDATE_MEMORY = "update_memory"
UPSERT_MEMORY = "upsert_memory"
SEARCH_MEMORY = "search_memory"
DELETE_MEMORY = "delete_memory"
SEND = "send"
"""Operation name of a message that begins a trace."""

TAKE_OVER = "take_over"
"""Operation name of the takeover of a cluster partition from another node."""

# --- values of the conventions -----------------------------------------------------------

PROVIDERS = {
    "openai-responses": "openai",
    "gemini": "gcp.gemini",
    "azure": "azure.ai.openai",
    "bedrock": "aws.bedrock",
    "mistral": "mistral_ai",
}
"""Values of `gen_ai.provider.name` for the providers whose name in actgent differs."""
FINISH_WORDS = {
    "end": "stop",
    "tool_calls": "tool_call",
    "filter": "content_filter",
    "refusal": "content_filter",
}
"""Finish reasons for the stop reasons whose name in actgent differs."""

# --- attributes of the conventions -------------------------------------------------------

OPERATION = "gen_ai.operation.name"
PROVIDER = "gen_ai.provider.name"
REQUEST_MODEL = "gen_ai.request.model"
RESPONSE_MODEL = "gen_ai.response.model"
RESPONSE_ID = "gen_ai.response.id"
AGENT = "gen_ai.agent.name"
CONVERSATION = "gen_ai.conversation.id"
TEMPERATURE = "gen_ai.request.temperature"
MAX_TOKENS = "gen_ai.request.max_tokens"
STREAM = "gen_ai.request.stream"
OUTPUT_TYPE = "gen_ai.output.type"
FINISH_REASONS = "gen_ai.response.finish_reasons"
FIRST_CHUNK = "gen_ai.response.time_to_first_chunk"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
CACHE_READ_TOKENS = "gen_ai.usage.cache_read.input_tokens"
CACHE_WRITE_TOKENS = "gen_ai.usage.cache_write.input_tokens"
REASONING_TOKENS = "gen_ai.usage.reasoning.output_tokens"
TOOL_NAME = "gen_ai.tool.name"
TOOL_CALL = "gen_ai.tool.call.id"
TOOL_TYPE = "gen_ai.tool.type"
INPUT_MESSAGES = "gen_ai.input.messages"
OUTPUT_MESSAGES = "gen_ai.output.messages"
SYSTEM_INSTRUCTIONS = "gen_ai.system_instructions"
TOOL_ARGUMENTS = "gen_ai.tool.call.arguments"
TOOL_RESULT = "gen_ai.tool.call.result"
TOOL_DEFINITIONS = "gen_ai.tool.definitions"
TOOL_DESCRIPTION = "gen_ai.tool.description"
WORKFLOW_NAME = "gen_ai.workflow.name"
EMBEDDING_DIMENSIONS = "gen_ai.embeddings.dimension.count"
MEMORY_ID = "gen_ai.memory.record.id"
MEMORY_COUNT = "gen_ai.memory.record.count"
MEMORY_QUERY = "gen_ai.memory.query.text"
HTTP_METHOD = "http.request.method"
HTTP_ROUTE = "http.route"
HTTP_STATUS = "http.response.status_code"
URL_SCHEME = "url.scheme"
ERROR = "error.type"
SERVER_ADDRESS = "server.address"
SERVER_PORT = "server.port"

# --- attributes of actgent ------------------------------------------------------------------

MESSAGE = "actgent.message.id"
PRIORITY = "actgent.priority"
QUEUE_SECONDS = "actgent.queue.seconds"
ACTIVATION = "actgent.activation"
"""Attribute with the reason why a turn runs: `begin` (new message), `person` (after an approval), `restart` (after a
failure).
"""
ATTEMPT = "actgent.attempt"
RATE_LIMITER_SECONDS = "actgent.rate_limiter.seconds"
COST = "actgent.cost.usd"
TOOL_EFFECT = "actgent.tool.effect"
TOOL_STATUS = "actgent.tool.status"
LABEL_SOURCES = "actgent.label.sources"
"""Untrusted sources of a tool's result, or of the conversation at the end of a turn; absent if there are none."""
LABEL_READERS = "actgent.label.readers"
"""Owners that may read the same text; absent if all owners may read it."""
PARTITION = "actgent.cluster.partition"
REASON = "actgent.cluster.reason"
"""Attribute with the reason of a takeover: `new`, `given_back`, `died`; `none` if no partition was acquired."""
TURN_CALLS = "actgent.turn.model_calls"
TURN_TOOL_CALLS = "actgent.turn.tool_calls"
TURN_INPUT_TOKENS = "actgent.turn.input_tokens"
TURN_OUTPUT_TOKENS = "actgent.turn.output_tokens"
TURN_COST = "actgent.turn.cost.usd"

# --- metrics -----------------------------------------------------------------------------

CALL_DURATION = "gen_ai.client.operation.duration"
CALL_FIRST_CHUNK = "gen_ai.client.operation.time_to_first_chunk"
TOKEN_USAGE = "gen_ai.client.token.usage"  # noqa: S105 - tokens of text
TOKEN_TYPE = "gen_ai.token.type"  # noqa: S105 - the same
AGENT_DURATION = "gen_ai.invoke_agent.duration"
AGENT_CALLS = "gen_ai.invoke_agent.inference_calls"
AGENT_TOOL_CALLS = "gen_ai.invoke_agent.tool_calls"
TOOL_DURATION = "gen_ai.execute_tool.duration"
TAKEOVER_DURATION = "actgent.cluster.takeover.duration"
HTTP_DURATION = "http.server.request.duration"
SECOND_BOUNDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
"""Histogram bucket bounds for durations in seconds, recommended by the conventions."""
TOKEN_BOUNDS = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216, 67108864)
"""Histogram bucket bounds for token counts, recommended by the conventions."""
TURN_SECOND_BOUNDS = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2, 102.4, 204.8, 409.6)
"""Histogram bucket bounds for turn durations in seconds, recommended by the conventions."""
CALL_BOUNDS = (1, 2, 4, 8, 16, 32, 64, 128)
"""Histogram bucket bounds for the number of calls of a turn, recommended by the conventions."""
HTTP_SECOND_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
"""Histogram bucket bounds for HTTP requests in seconds, recommended by the conventions."""
REFUSED = "refused"
"""Value of the attributes `error.type` and `actgent.tool.status` of a tool call that was not permitted to run."""
