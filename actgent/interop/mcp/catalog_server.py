"""Handlers of an MCP server for a catalog: tools, prompts, resources, completions, log levels and subscriptions."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import mcp_types as types
import orjson
import trio
from mcp.server.caching import CacheHint
from mcp.server.connection import Connection
from mcp.server.lowlevel import Server
from mcp.server.subscriptions import (
    InMemorySubscriptionBus,
    ListenHandler,
    PromptsListChanged,
    ResourcesListChanged,
    ResourceUpdated,
    ToolsListChanged,
)
from mcp.shared.exceptions import MCPError
from pydantic import TypeAdapter

from actgent.approvals import Approval, Approve, Decision, FormAnswer, Reject, Respond, approval_id
from actgent.errors import (
    ApprovalRequired,
    ConfigurationError,
    InvalidArguments,
    InvalidToolResult,
    ToolError,
)
from actgent.information_flow_labels import TRUSTED, Label, text_of, without_labels
from actgent.interop.approval_forms import decision_of, form_of, question_text
from actgent.messages import CallProgress, ToolCall, ToolResult
from actgent.support.safe_logging import logger_of
from actgent.support.user_code_calls import leaves
from actgent.tools.outputs.result_text import truncate
from actgent.tools.schemas import compile_schema
from actgent.tools.tool_execution import Batch
from actgent.tools.tool_interface import NestedToolCalls, Tool, ToolContext, WrappedTool
from actgent.tools.tool_registry import ToolRegistry
from actgent.tools.untrusted_sources_of_call import CallSources, reading_text_of, running_call
from actgent.turns.calls.tool_progress_publisher import ProgressPublisher

from .catalog import MAX_COMPLETIONS, MCPCatalog, MCPPrompt, MCPResource
from .client_questions import (
    Context,
    InputRequested,
    MCPCaller,
    MissingCapability,
    connection_of,
    current_caller,
    set_log_level,
)
from .content_blocks import blocks_of, call_label, contents_of, messages_of, meta_of

MAX_RESULT_CHARACTERS = 1_000_000
"""Maximum length of a result in characters; longer results are truncated with a notice."""


@attrs.frozen(kw_only=True)
class ToolOutcome:
    """Result of a finished tool call, or the question for which the call waits."""

    result: ToolResult | None = None
    """Result of the tool call; None if the call asks a question."""
    value: object = None
    """Value that the tool returned; undefined if the call failed."""
    question: ApprovalRequired | None = None
    """Question that must be answered before the call continues; None if the call has ended."""
    error: Exception | None = None
    """Exception that the tool raised; None after a success."""

    @property
    def label(self) -> Label:
        """Untrusted sources and permitted readers of the result; no restriction before the call has ended."""
        return TRUSTED if self.result is None else self.result.label

    @property
    def error_text(self) -> str:
        """Error text for the client; empty after a success.

        Only the text of a `ToolError` is shown, because other exceptions may contain names of files and hosts.
        """
        if self.result is None or self.result.error is None:
            return ""
        if self.error is not None and not all(isinstance(each, ToolError) for each in leaves(self.error)):
            return f"{self.result.tool_name} failed: the log of the server has the reason"
        return self.result.error


async def run_tool(
    tool: Tool,
    arguments: Mapping[str, Any],
    *,
    owner: str = "",
    label: Label = TRUSTED,
    call_id: str = "",
    report: Callable[[CallProgress], object] | None = None,
    grant: Approve | None = None,
) -> ToolOutcome:
    """Run a tool once without an agent, and return the outcome.

    Args:
        tool: Tool to run.
        arguments: Arguments of the call, not yet validated.
        owner: Name of the owner for `ToolContext.owner`.
        label: Untrusted sources and permitted readers of the arguments.
        call_id: Id of the call for `ToolContext.call_id`.
        report: Function that is called with each `CallProgress`; None ignores progress.
        grant: Approval of the call, which the tool finds as `ToolContext.approval`; None without an approval.
    """
    call = ToolCall(tool.name, dict(arguments), id=call_id)
    sources = CallSources(owner=None, argument_sources="")
    recorder, host = _Recorder(tool), _Host(tool.name, sources)
    batch = Batch(
        (call,),
        ToolRegistry([recorder]),
        context=ToolContext(owner=owner, report=report),
        grants={} if grant is None else {call.id: grant},
        max_characters=MAX_RESULT_CHARACTERS,
        host=host,
    )
    token = running_call.set(sources)
    try:
        with reading_text_of(text_of(label)):
            await batch.run()
    finally:
        running_call.reset(token)
    if (question := batch.awaiting_approval.get(0)) is not None:
        return ToolOutcome(question=question)
    return ToolOutcome(result=batch.results()[0], value=recorder.value, error=host.error)


class _Recorder(WrappedTool):
    """Stores the value that the tool returned, because the result text does not have its pictures, files and order."""

    value: object = None

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> object:
        value = await self.inner.execute(arguments, context)
        self.value = without_labels(value)
        return value


@attrs.define
class _Host:
    """Replacement for the turn, for a tool call without an agent."""

    name: str
    sources: CallSources
    error: Exception | None = None

    @property
    def via(self) -> str:
        """Untrusted sources of the agents that the tool has called, as the journal encodes them."""
        return self.sources.answer_sources

    def store_long_result(self, call: ToolCall, text: str, limit: int) -> str:
        return truncate(text, limit)

    def nest(self, call: ToolCall) -> NestedToolCalls:
        raise ConfigurationError(f"tool {self.name!r} cannot run without an agent: it calls other tools")

    def report_exception(self, call: ToolCall, error: Exception) -> None:
        self.error = error
        if not isinstance(error, ToolError):
            _log.error("tool %s failed", self.name, exc_info=error)

    def log_unserializable(self, call: ToolCall, error: InvalidToolResult) -> None:
        _log.warning("the result of tool %s has no JSON form: %s", self.name, error)


LIST_MILLISECONDS = 60_000
"""Milliseconds for which a client may cache a list."""
MAX_SUBSCRIPTIONS = 1_000
"""Maximum number of resources that a connection may subscribe to."""
PROGRESS_SECONDS = 5.0
"""Seconds for which a progress report may wait for a client that does not read."""
_LISTS = ("prompts/list", "resources/list", "resources/templates/list")
_SUBSCRIPTIONS = "actgent.subscriptions"
"""Key of the subscribed URIs in the state of a connection."""
_RESOURCE_NOT_FOUND = -32002
"""Error code for unknown resources, before the revision 2026-07-28."""
_responses: TypeAdapter[types.InputResponses] = TypeAdapter(types.InputResponses)
_log = logger_of(__name__)


@attrs.define(kw_only=True)
class _CallState:
    """State of a call between its rounds in MCP 2026-07-28. The client stores the encrypted state and returns it."""

    responses: dict[str, types.InputResponse] = attrs.field(factory=dict)
    """Responses of the client to the requests of the function, by key."""
    asked: Approval | None = None
    """Approval for which the client was asked; None if the function itself has asked the client."""
    grant: Approve | None = None
    """Last approval decision, which the function receives when it runs again; None before the first decision."""

    def to_text(self) -> str:
        """Encode the state as text, which the client sends back with its responses."""
        return orjson.dumps(
            {
                "responses": _responses.dump_python(
                    self.responses, mode="json", by_alias=True, exclude_none=True
                ),
                "asked": None if self.asked is None else self.asked.to_dict(),
                "grant": None if self.grant is None else self.grant.to_dict(),
            }
        ).decode()

    @classmethod
    def from_text(cls, text: str) -> "_CallState":
        """Restore the state from the text of `to_text`."""
        found = orjson.loads(text)
        return cls(
            responses=_responses.validate_python(found["responses"], by_name=False),
            asked=None if found["asked"] is None else Approval.from_dict(found["asked"]),
            grant=None if found["grant"] is None else Approve.from_dict(found["grant"]),
        )


@attrs.frozen(kw_only=True)
class _Failed:
    """Failure of a call of a catalog function."""

    text: str
    """Reason of the failure, for the client."""
    error: Exception | None = None
    """Exception of the function; None if the function did not run."""
    label: Label = TRUSTED
    """Untrusted sources and permitted readers of `text`."""


@attrs.frozen
class CatalogServer:
    """Handlers of an MCP server for the items of a catalog."""

    catalog: MCPCatalog
    owner_of: Callable[[Context], str]
    """Returns the name of the owner for a request."""
    may_decide: Callable[[Context], bool]
    """Returns True if the client of a request may decide approvals."""

    def register(self, server: Server[Any]) -> None:
        """Add the handlers of the catalog to an MCP server, and notify the server's clients when the catalog changes."""
        changes = self.catalog.changes
        if not isinstance(changes, _Changes):
            changes = self.catalog.changes = _Changes()
        for method, params, handler in (
            ("prompts/list", types.PaginatedRequestParams, self._list_prompts),
            ("prompts/get", types.GetPromptRequestParams, self._get_prompt),
            ("resources/list", types.PaginatedRequestParams, self._list_resources),
            ("resources/templates/list", types.PaginatedRequestParams, self._list_templates),
            ("resources/read", types.ReadResourceRequestParams, self._read_resource),
            ("resources/subscribe", types.SubscribeRequestParams, changes.subscribe),
            ("resources/unsubscribe", types.UnsubscribeRequestParams, changes.unsubscribe),
            ("subscriptions/listen", types.SubscriptionsListenRequestParams, ListenHandler(changes.bus)),
            ("completion/complete", types.CompleteRequestParams, self._complete),
            ("logging/setLevel", types.SetLevelRequestParams, set_log_level),
        ):
            server.add_request_handler(method, params, handler)  # type: ignore[arg-type] # a table of several types
        hint = CacheHint(ttl_ms=LIST_MILLISECONDS, scope="private")
        server.cache_hints.update(dict.fromkeys(_LISTS, hint))
        server.cache_hints["resources/read"] = CacheHint(ttl_ms=0, scope="private")

    # --- tools ---------------------------------------------------------------------------

    def tools(self) -> list[types.Tool]:
        """Return the MCP definitions of the catalog's tools."""
        return [_tool(each) for each in self.catalog.tools]

    async def call_tool(
        self, context: Context, params: types.CallToolRequestParams, tool: Tool
    ) -> types.CallToolResult | types.InputRequiredResult:
        """Run a tool of the catalog for an MCP client. A failure becomes an error result."""
        found = await self._run(context, params, tool, params.arguments or {})
        if isinstance(found, types.InputRequiredResult):
            return found
        if isinstance(found, _Failed):
            return types.CallToolResult(
                content=[types.TextContent(type="text", text=found.text)],
                is_error=True,
                _meta=meta_of(found.label),
            )
        value = found.value
        return types.CallToolResult(
            content=blocks_of(value),
            structured_content=_object_of(found.result) if isinstance(value, Mapping) else None,
            _meta=meta_of(found.label),
        )

    # --- prompts ---------------------------------------------------------------------------

    async def _list_prompts(
        self, context: Context, params: types.PaginatedRequestParams
    ) -> types.ListPromptsResult:
        await trio.lowlevel.checkpoint()
        return types.ListPromptsResult(prompts=[_prompt(each) for each in self.catalog.prompts.values()])

    async def _get_prompt(
        self, context: Context, params: types.GetPromptRequestParams
    ) -> types.GetPromptResult | types.InputRequiredResult:
        prompt = self.catalog.prompts.get(params.name)
        if prompt is None:
            await trio.lowlevel.checkpoint()
            raise MCPError(types.INVALID_PARAMS, f"Unknown prompt: {params.name}")
        found = await self._run(context, params, prompt.tool, params.arguments or {})
        if isinstance(found, types.InputRequiredResult):
            return found
        value = _value_or_error(found)
        return types.GetPromptResult(
            description=prompt.tool.description, messages=messages_of(value), _meta=meta_of(found.label)
        )

    # --- resources ---------------------------------------------------------------------------

    async def _list_resources(
        self, context: Context, params: types.PaginatedRequestParams
    ) -> types.ListResourcesResult:
        await trio.lowlevel.checkpoint()
        found = [each for each in self.catalog.resources if not each.is_template]
        return types.ListResourcesResult(
            resources=[types.Resource(uri=each.uri, **_about(each)) for each in found]
        )

    async def _list_templates(
        self, context: Context, params: types.PaginatedRequestParams
    ) -> types.ListResourceTemplatesResult:
        await trio.lowlevel.checkpoint()
        found = [each for each in self.catalog.resources if each.is_template]
        return types.ListResourceTemplatesResult(
            resource_templates=[
                types.ResourceTemplate(uri_template=each.uri, **_about(each)) for each in found
            ]
        )

    async def _read_resource(
        self, context: Context, params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult | types.InputRequiredResult:
        uri = str(params.uri)
        matching = self.catalog.find_resource(uri)
        caller = MCPCaller(context=context)
        if matching is None:
            await trio.lowlevel.checkpoint()
            code = types.INVALID_PARAMS if caller.is_modern else _RESOURCE_NOT_FOUND
            raise MCPError(code, "Resource not found", {"uri": uri})
        resource, variables = matching
        found = await self._run(context, params, resource.tool, variables)
        if isinstance(found, types.InputRequiredResult):
            return found
        contents = contents_of(_value_or_error(found), uri, resource.media_type)
        return types.ReadResourceResult(contents=contents, _meta=meta_of(found.label))

    # --- completions ---------------------------------------------------------------------------

    async def _complete(self, context: Context, params: types.CompleteRequestParams) -> types.CompleteResult:
        await trio.lowlevel.checkpoint()
        ref, text = params.ref, params.argument.value
        found: MCPPrompt | MCPResource | None
        if isinstance(ref, types.PromptReference):
            found = self.catalog.prompts.get(ref.name)
        else:
            found = next((each for each in self.catalog.resources if each.uri == str(ref.uri)), None)
        if found is None:
            raise MCPError(types.INVALID_PARAMS, "Unknown prompt or resource template")
        known = found.completions.get(params.argument.name, ())
        try:
            values = (
                list(known(text)) if callable(known) else [each for each in known if each.startswith(text)]
            )
        except Exception as error:
            _log.exception("the completions of %s failed", found.name)
            raise MCPError(
                types.INTERNAL_ERROR,
                "the function that suggests argument values has failed: the server log has the reason",
            ) from error
        return types.CompleteResult(
            completion=types.Completion(
                values=values[:MAX_COMPLETIONS], total=len(values), has_more=len(values) > MAX_COMPLETIONS
            )
        )

    # --- running a function ----------------------------------------------------------------------

    async def _run(
        self,
        context: Context,
        params: types.CallToolRequestParams | types.GetPromptRequestParams | types.ReadResourceRequestParams,
        tool: Tool,
        arguments: Mapping[str, Any],
    ) -> ToolOutcome | types.InputRequiredResult | _Failed:
        """Run a function of the catalog: a tool, prompt or resource.

        Return an input request if the function, or the approval of the call, needs input from the client.

        Raises:
            MCPError: The client has not declared a capability (2026-07-28).
        """
        state = _CallState() if params.request_state is None else _CallState.from_text(params.request_state)
        state.responses |= params.input_responses or {}
        caller = MCPCaller(context=context, responses=state.responses)
        run = _Run(self, caller, tool, arguments, state)
        publisher = ProgressPublisher(_ProgressReport(context))
        token = current_caller.set(caller)
        try:
            await publisher.run(lambda: run.run(publisher.put))
        finally:
            current_caller.reset(token)
        if (
            isinstance(run.outcome, _Failed)
            and isinstance(run.outcome.error, MissingCapability)
            and caller.is_modern
        ):
            required = run.outcome.error.required.model_dump(mode="json", by_alias=True, exclude_none=True)
            raise MCPError(
                types.MISSING_REQUIRED_CLIENT_CAPABILITY,
                str(run.outcome.error),
                {"requiredCapabilities": required},
            )
        return run.outcome


@attrs.define
class _Run:
    """One call of a catalog function by an MCP client."""

    server: CatalogServer
    caller: MCPCaller
    tool: Tool
    arguments: Mapping[str, Any]
    state: _CallState
    outcome: ToolOutcome | types.InputRequiredResult | _Failed = attrs.field(
        factory=lambda: _Failed(text="the call has not ended")
    )
    """Result of the call so far: the result of the function, a request for input from the client, or a failure."""

    async def run(self, report: Callable[[CallProgress], object]) -> None:
        """Run the function until it ends or needs input from the client. Store the result in `outcome`."""
        if self.state.asked is not None and not await self._decide(self.state.asked):
            return
        owner = self.server.owner_of(self.caller.context)
        while True:
            outcome = await run_tool(
                self.tool,
                self.arguments,
                owner=owner,
                label=call_label(self.caller.context.meta, owner),
                call_id=str(self.caller.context.request_id),
                report=report,
                grant=self.state.grant,
            )
            question = outcome.question
            if question is None:
                failed = _Failed(text=outcome.error_text, error=outcome.error, label=outcome.label)
                self.outcome = failed if outcome.error_text else outcome
                return
            if isinstance(question, InputRequested):
                self.outcome = self._request(question.requests)
                return
            if not await self._decide(self._approval_of(question)):
                return

    def _approval_of(self, question: ApprovalRequired) -> Approval:
        words = question.question
        return Approval(
            id=approval_id("", "", self.tool.name, self.arguments, words),
            session_id="",
            agent="",
            call_id="",
            tool_name=self.tool.name,
            arguments=dict(self.arguments),
            question=words,
            form=question.form,  # type: ignore[arg-type] # `Batch` has validated it
            again=question.again,
            risk=question.risk,
            state=question.state,
        )

    async def _decide(self, approval: Approval) -> bool:
        """Ask the client's user for the decision on an approval. Return True if the function may run.

        Otherwise store the result for the client in `outcome`: the rejection, the user's answer, or the request for input.
        """
        self.state.asked = approval
        params = types.ElicitRequestFormParams(
            message=question_text(approval), requested_schema=form_of(approval)
        )
        request = types.ElicitRequest(params=params)
        undecided = _Failed(text=f"the call waits for an approval: {question_text(approval)}")
        if not (self.server.may_decide(self.caller.context) and self.caller.shows_forms):
            self.outcome = undecided
            await trio.lowlevel.checkpoint()
            return False
        try:
            response = (await self.caller.request({approval.id: request}))[approval.id]
        except InputRequested as requested:
            self.outcome = self._request(requested.requests)
            return False
        self.state.responses.pop(approval.id, None)
        self.state.asked = None
        action, content = getattr(response, "action", None), getattr(response, "content", None)
        decision = decision_of(approval, action, content)
        if decision is None:
            self.outcome = undecided
        elif (reason := _mismatch(approval, decision)) is not None:
            self.outcome = _Failed(text=f"the answer does not match the form: {reason}")
        elif isinstance(decision, Reject):
            self.outcome = _Failed(text=decision.reason)
        elif isinstance(decision, Respond):
            self.outcome = ToolOutcome(value=decision.content)
        else:
            self.state.grant = _grant(approval, decision)
            return True
        return False

    def _request(self, requests: Mapping[str, types.InputRequest]) -> types.InputRequiredResult:
        return types.InputRequiredResult(input_requests=dict(requests), request_state=self.state.to_text())


def _grant(approval: Approval, decision: Decision) -> Approve:
    """Convert the decision on an approval to the `Approve` object that the approved catalog function receives.

    If the user has filled in a form, the object also has the question, and the state that the function stored with it.
    """
    content = decision.content if isinstance(decision, Approve) else None
    if content is None:
        return Approve()
    return FormAnswer(content=content, question=approval.question, state=approval.state)


def _mismatch(approval: Approval, decision: Decision) -> str | None:
    """Return the reason why the values of a decision do not match the approval's form; None if they match or without a form."""
    if approval.form is None or not isinstance(decision, (Approve, Respond)):
        return None
    return compile_schema(approval.form, owner="the question").reason(decision.content)


@attrs.define
class _ProgressReport:
    """Sends the progress of a call to the client, with growing numbers, as MCP requires."""

    context: Context
    last: float = -1.0

    async def __call__(self, progress: CallProgress) -> None:
        done = self.last + 1 if progress.done is None else progress.done
        if done <= self.last:
            await trio.lowlevel.checkpoint()
            return
        self.last = done
        with trio.move_on_after(PROGRESS_SECONDS):  # the publisher shields it from cancellation
            await self.context.session.report_progress(done, progress.total, progress.text or None)


def _value_or_error(outcome: ToolOutcome | _Failed) -> object:
    """Return the value of a prompt or resource function.

    Raises:
        MCPError: The function failed.
    """
    if isinstance(outcome, ToolOutcome):
        return outcome.value
    is_invalid = isinstance(outcome.error, InvalidArguments) or outcome.error is None
    raise MCPError(types.INVALID_PARAMS if is_invalid else types.INTERNAL_ERROR, outcome.text)


def _object_of(result: Any) -> dict[str, Any] | None:
    found = None if result is None else orjson.loads(result.content)
    return found if isinstance(found, dict) else None


def _tool(each: Tool) -> types.Tool:
    return types.Tool(
        name=each.name,
        description=each.description,
        input_schema=dict(each.parameters),
        annotations=types.ToolAnnotations(
            read_only_hint=each.effect == "pure", idempotent_hint=each.effect != "once"
        ),
    )


def _prompt(each: MCPPrompt) -> types.Prompt:
    schema = each.tool.parameters
    required = schema.get("required", ())
    arguments = [
        types.PromptArgument(name=name, description=member.get("description"), required=name in required)
        for name, member in schema.get("properties", {}).items()
    ]
    return types.Prompt(
        name=each.name,
        title=each.title or None,
        description=each.tool.description,
        arguments=arguments or None,
    )


def _about(each: MCPResource) -> dict[str, Any]:
    return {
        "name": each.name,
        "title": each.title or None,
        "description": each.tool.description,
        "mime_type": each.media_type,
    }


@attrs.define(eq=False)
class _Changes:
    """Notifies clients when a catalog changes: with streams (MCP 2026-07-28) or subscriptions (MCP 2025-11-25)."""

    bus: InMemorySubscriptionBus = attrs.field(factory=InMemorySubscriptionBus)
    """Bus with events for clients of MCP 2026-07-28."""
    connections: set[Connection] = attrs.field(factory=set)
    """Connections of clients with subscriptions, of earlier MCP revisions."""

    async def subscribe(self, context: Context, params: types.SubscribeRequestParams) -> types.EmptyResult:
        """Handle `resources/subscribe`: notify the client from now on when this resource changes."""
        await trio.lowlevel.checkpoint()
        connection = connection_of(context)
        uris: set[str] = connection.state.setdefault(_SUBSCRIPTIONS, set())
        if len(uris) >= MAX_SUBSCRIPTIONS:
            raise MCPError(
                types.INVALID_PARAMS, f"a connection must have at most {MAX_SUBSCRIPTIONS} subscriptions"
            )
        uris.add(str(params.uri))
        if connection not in self.connections:
            self.connections.add(connection)
            connection.exit_stack.callback(self.connections.discard, connection)
        return types.EmptyResult()

    async def unsubscribe(
        self, context: Context, params: types.UnsubscribeRequestParams
    ) -> types.EmptyResult:
        """Handle `resources/unsubscribe`: remove the client's subscription. An unknown subscription is ignored."""
        await trio.lowlevel.checkpoint()
        connection_of(context).state.get(_SUBSCRIPTIONS, set()).discard(str(params.uri))
        return types.EmptyResult()

    async def lists_changed(self, *, tools: bool, prompts: bool, resources: bool) -> None:
        events: Sequence[tuple[bool, Any]] = (
            (tools, ToolsListChanged),
            (prompts, PromptsListChanged),
            (resources, ResourcesListChanged),
        )
        for is_changed, event in events:
            if is_changed:
                await self.bus.publish(event())

    async def resource_changed(self, uri: str) -> None:
        await self.bus.publish(ResourceUpdated(uri=uri))
        for connection in tuple(self.connections):
            if uri in connection.state[_SUBSCRIPTIONS]:
                await connection.send_resource_updated(uri)
