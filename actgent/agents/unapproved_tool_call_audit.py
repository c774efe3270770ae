"""Audit of recorded sessions: tool calls that depended on untrusted text and ran without an approval.

The audit computes the labels of sessions from their records, independently of the decisions at run time.
"""

from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs

from actgent.agents.agent import Agent
from actgent.approvals import Approval, Decision, Grant
from actgent.errors import InvalidArguments
from actgent.information_flow_labels import TRUSTED, Label, label_of, text_of, without_source
from actgent.journal.journal_interface import Journal
from actgent.journal.record_types import (
    AgentMessageRecord,
    ApprovalDecisionRecord,
    ApprovalRequestRecord,
    CallFinishedRecord,
    CallsStartedRecord,
    MessageAcceptedRecord,
    MessageAppendedRecord,
    Record,
    SessionCreatedRecord,
    SourceLiftRecord,
    StateChangeRecord,
    SystemPromptRecord,
)
from actgent.messages import Message, ToolCall, ToolResult
from actgent.tools.tool_interface import Tool
from actgent.tools.tool_registry import CALL_TOOL
from actgent.toolsets.toolset import static_tools
from actgent.turns.calls.nested_tool_calls import NestedCall, call_reference, nested_call_of
from actgent.turns.calls.untrusted_result_isolation import Isolation
from actgent.turns.calls.untrusted_text_policy import excluded_audience, is_quoted, sinks_of, texts_of_owner


@attrs.frozen(kw_only=True)
class UnapprovedCall:
    """A recorded tool call that ran without an approval, although the policy for untrusted text requires one.

    Untrusted text has reached a sink (a parameter that needs trusted values), or a reader who may not read the data gets it.
    """

    session_id: str
    """Id of the session in which the call ran."""
    agent: str
    """Name of the agent of the session."""
    record: int
    """Number of the journal record that shows that the call ran, from 1."""
    call: ToolCall
    """The tool call. References to results that the model did not see are replaced by their values."""
    labels: Mapping[str, Label]
    """Untrusted sources and permitted readers of each checked argument, by parameter name.
    The checked arguments are those of parameters that need trusted values (`Tool.sinks`), and those whose value has a restricted set
    of readers. Empty if the call has no arguments.
    """
    label: Label
    """All untrusted sources on which the call depends, including the sources of its arguments."""


async def audit_journal(
    journal: Journal, agents: Iterable[Agent] = ()
) -> AsyncGenerator[tuple[str, Sequence[UnapprovedCall]]]:
    """Yield the id of each session of a journal, with the tool calls that needed an approval but ran without an approval.

    Args:
        journal: An open journal; it is only read.
        agents: Agents whose tools declare effects and sinks. For other agents and tools, all parameters count as sinks if the
            journal shows that the tool has an effect.
    """
    known = {agent.name: agent for agent in agents}
    for summary in await journal.sessions(None):
        records = await journal.load(summary.session_id, agent=summary.agent)
        yield (
            summary.session_id,
            audit_session(
                records, known.get(summary.agent), session_id=summary.session_id, name=summary.agent
            ),
        )


def audit_session(
    records: Sequence[Record], agent: Agent | None = None, *, session_id: str = "", name: str = ""
) -> Sequence[UnapprovedCall]:
    """Return the tool calls of a session that needed an approval but ran without an approval, in the order of their results.

    Args:
        records: All records of the session.
        agent: Agent whose tools declare effects and sinks; None uses only the records.
        session_id: Id of the session, for the result.
        name: Name of the agent of the session, for the result.
    """
    audit = _Audit(agent, session_id, name)
    for number, record in enumerate(records, 1):
        audit.add(number, record)
    audit.close(audit.calls)
    return audit.found


def labels_of_session(records: Iterable[Record]) -> Iterator[Label]:
    """Yield the label of a session after each of its records, from the first record on."""
    audit = _Audit(None, "", "")
    for number, record in enumerate(records, 1):
        audit.add(number, record)
        yield audit.label


@attrs.frozen
class _Start:
    """Recorded situation of the session at the start of a tool call."""

    record: int
    label: Label
    state: Mapping[str, Any]
    """Session state at the start of the call. It has the values to which the references in the arguments point."""
    decided: Mapping[str, Decision]
    """Decisions on approvals that were made before the call started, by approval id."""
    texts: Sequence[str]
    """Texts that the owner wrote before the call started."""


@attrs.define
class _Audit:
    """Labels, approvals and open calls of one session, updated with each record."""

    agent: Agent | None
    session_id: str
    name: str
    found: list[UnapprovedCall] = attrs.field(factory=list, init=False)
    label: Label = attrs.field(default=TRUSTED, init=False)
    calls: dict[str, ToolCall] = attrs.field(factory=dict, init=False)
    """Tool calls without a final result so far, by call id."""
    _answers: dict[str, Sequence[ToolCall]] = attrs.field(factory=dict, init=False)
    """All calls of the same answer, by the id of each call."""
    _tools: dict[str, Tool] = attrs.field(factory=dict, init=False)
    _accepted: dict[str, Message] = attrs.field(factory=dict, init=False)
    _state: dict[str, Any] = attrs.field(factory=dict, init=False)
    _approvals: dict[str, Approval] = attrs.field(factory=dict, init=False)
    _decided: dict[str, Decision] = attrs.field(factory=dict, init=False)
    _texts: tuple[str, ...] = attrs.field(default=(), init=False)
    _started: dict[str, _Start] = attrs.field(factory=dict, init=False)
    """Session state, decisions and texts at the first start of each tool call with an effect, by call id."""
    _finished: dict[str, tuple[_Start, ToolResult]] = attrs.field(factory=dict, init=False)
    """First result of each tool call, with the session state, decisions and texts at the start of the call, by call id."""
    _has_begun: bool = attrs.field(default=False, init=False)
    """True after the start of the first turn. Earlier messages were copied from another session."""
    _nested: set[str] = attrs.field(factory=set, init=False)
    """Ids of the nested calls (calls that other tool calls made) that were checked."""

    def __attrs_post_init__(self) -> None:
        if self.agent is not None:
            toolsets = [each.tools_from(static_tools(each)) for each in self.agent.toolsets]
            tools = (*self.agent.tools, *(tool for each in toolsets for tool in each))
            self._tools = {each.name: each for each in tools}

    def add(self, number: int, record: Record) -> None:
        match record:
            case MessageAcceptedRecord(message=message):
                self._accepted[message.id] = message
            case MessageAppendedRecord(message_id=message_id) if message_id in self._accepted:
                self._has_begun = True
                message = self._accepted[message_id]
                self.label |= message.label
                self._texts += tuple(texts_of_owner(message))
            case AgentMessageRecord():
                self._add_message(number, record)
            case CallsStartedRecord() | CallFinishedRecord():
                self._add_call(number, record)
            case SessionCreatedRecord() | SystemPromptRecord():
                self.label |= label_of(record.via)
            case SourceLiftRecord(source=source):
                self.label = label_of(without_source(text_of(self.label), source))
            case StateChangeRecord():
                self._change_state(number, record)
            case ApprovalRequestRecord(approval=approval):
                self._approvals[approval.id] = approval
            case ApprovalDecisionRecord(approval_id=approval_id, decision=decision):
                self._decided = {**self._decided, approval_id: decision}

    def _add_call(self, number: int, record: CallsStartedRecord | CallFinishedRecord) -> None:
        """Note the start or the result of tool calls, from record `number`."""
        now = self._now(number)
        if isinstance(record, CallFinishedRecord):
            self._finished.setdefault(record.result.call_id, (now, record.result))
            return
        for each in record.call_ids:
            self._started.setdefault(each, now)

    def _change_state(self, number: int, record: StateChangeRecord) -> None:
        """Apply the state changes in record `number`, and check the nested calls that they record."""
        self.label |= label_of(record.via)
        self._state = {**self._state, **record.changes}  # earlier starts keep the earlier state
        for key, value in record.changes.items():
            if (nested := nested_call_of(key, value)) is not None and nested.call.id not in self._nested:
                self._nested.add(nested.call.id)
                self._check_nested(nested, self._now(number))

    def _now(self, number: int) -> _Start:
        return _Start(number, self.label, self._state, self._decided, self._texts)

    def _add_message(self, number: int, record: AgentMessageRecord) -> None:
        message = record.with_text_calls()
        if (
            not self._has_begun
        ):  # a message of `create_session(history=)`, whose calls ran in another session or not at all
            self._texts += tuple(texts_of_owner(message))
            self.label |= message.label
            return
        self.calls |= {part.id: part for part in message.parts if isinstance(part, ToolCall)}
        self.calls |= {call.id: call for call in message.text_calls}
        calls = (*message.tool_calls, *message.text_calls)
        self._answers |= dict.fromkeys((call.id for call in calls), calls)
        for result in message.tool_results:
            self._finished.setdefault(result.call_id, (self._now(number), result))
        self.close([result.call_id for result in message.tool_results])
        self.label |= message.label

    def close(self, ids: Iterable[str]) -> None:
        """Check the tool calls with these ids, and remove them from the open calls, because they get no further result."""
        for each in tuple(ids):
            call = self.calls.pop(each, None)
            started = self._started.pop(each, None)
            finished, result = self._finished.pop(each, (None, None))
            if call is not None and (start := started or finished) is not None:
                self._check(call, start, result, is_started=started is not None)

    def _check(self, call: ToolCall, start: _Start, result: ToolResult | None, *, is_started: bool) -> None:
        """Add a tool call to the findings if it has run, the policy requires an approval, and none covers the call.

        `is_started` is True if the journal has a record of the start. Otherwise `result` shows if the call has run.
        """
        call = self._resolve(call)
        isolation = Isolation(_StoredState(start.state), _Lookup(self._tools))  # type: ignore[arg-type] # it only reads the state
        isolation.begin(self._answers.get(call.id, ()))
        call = isolation.fill(call)
        if not is_started and not self._has_run(call, start, result):
            return
        arguments = call.arguments if isinstance(call.arguments, Mapping) else {}
        tool = self._tools.get(call.name)
        sinks = sinks_of(tool, arguments) if tool is not None else list(arguments) if is_started else None
        labels = self._untrusted_sinks(call, sinks, start, isolation)
        filled = isolation.sources.get(call.id, {})
        data = label_of(text_of(start.label), *filled.values())
        excluded = None if tool is None else excluded_audience(tool, arguments, data, withheld=filled)
        if (labels is None and excluded is None) or self._is_granted(call, start):
            return
        labels = {**(labels or {}), **dict.fromkeys(excluded or (), data)}
        label = start.label
        for each in labels.values():
            label |= each
        self.found.append(
            UnapprovedCall(
                session_id=self.session_id,
                agent=self.name,
                record=start.record,
                call=call,
                labels=labels,
                label=label,
            )
        )

    def _untrusted_sinks(
        self, call: ToolCall, sinks: Sequence[str] | None, start: _Start, isolation: Isolation
    ) -> Mapping[str, Label] | None:
        """Return, by name, the labels of the sinks (arguments that need trusted values) that may depend on untrusted text; None if none."""
        if sinks is None:
            return None
        if start.label.is_trusted:
            withheld = isolation.unapproved(call)
            return {name: label_of(withheld[name]) for name in sinks if name in withheld} or None
        tool = self._tools.get(call.name)
        arguments = call.arguments if isinstance(call.arguments, Mapping) else {}
        if tool is not None and tool.effect == "pure" and self._are_quoted(sinks, arguments, start):
            return None
        return dict.fromkeys(sinks, start.label)

    def _check_nested(self, nested: NestedCall, start: _Start) -> None:
        """Add a nested call, made by another tool call, to the findings if an approval was required and none covers it."""
        call, tool = nested.call, self._tools.get(nested.call.name)
        arguments = call.arguments if isinstance(call.arguments, Mapping) else {}
        sinks: Sequence[str] | None
        if tool is None:
            sinks = list(arguments) if nested.has_effect else None
        else:
            sinks = sinks_of(tool, arguments)
        label = label_of(nested.sources)
        is_pure = tool is not None and tool.effect == "pure"
        if label.is_trusted or (is_pure and self._are_quoted(sinks or (), arguments, start)):
            sinks = None
        excluded = None if tool is None else excluded_audience(tool, arguments, label)
        if sinks is None and excluded is None:
            return
        outer = call.id.rpartition("/")[0]
        reference = call_reference(self.calls[outer].name if outer in self.calls else "", call)
        if any(
            each.call_id == outer
            and each.question.startswith(reference)
            and isinstance(start.decided.get(each.id), Grant)
            for each in self._approvals.values()
        ):
            return
        self.found.append(
            UnapprovedCall(
                session_id=self.session_id,
                agent=self.name,
                record=start.record,
                call=call,
                labels=dict.fromkeys((*(sinks or ()), *(excluded or ())), label),
                label=label,
            )
        )

    @staticmethod
    def _are_quoted(sinks: Iterable[str], arguments: Mapping[str, Any], start: _Start) -> bool:
        """Return True if the owner of the session wrote the values of all sinks (arguments that need trusted values) before the call."""
        names = tuple(sinks)
        return bool(names) and all(is_quoted(arguments[name], start.texts) for name in names)

    def _resolve(self, call: ToolCall) -> ToolCall:
        """Return the tool call that a call of `call_tool` requests. Return other calls unchanged."""
        arguments, gateway = call.arguments, self._tools.get(call.name)
        if (
            call.name != CALL_TOOL
            or not (gateway is None or gateway.is_gateway)
            or isinstance(arguments, str)
        ):
            return call
        if not isinstance(name := arguments.get("name"), str):
            return call
        return attrs.evolve(call, name=name, arguments=arguments.get("arguments", {}))

    def _has_run(self, call: ToolCall, start: _Start, result: ToolResult | None) -> bool:
        """Return True if the result shows that a tool call has run. The journal does not record the start of `pure` calls."""
        if result is None or any(
            not isinstance(start.decided.get(each.id), Grant | None) for each in self._approvals_of(call)
        ):
            return False  # an approver gave the result
        if (tool := self._tools.get(call.name)) is None or not _arguments_match_schema(call, tool):
            return False
        return bool(result.status in ("success", "outcome_unknown") or result.raised or result.origin)

    def _approvals_of(self, call: ToolCall) -> list[Approval]:
        return [each for each in self._approvals.values() if each.call_id == call.id]

    def _is_granted(self, call: ToolCall, start: _Start) -> bool:
        """Return True if an approver granted this call with these arguments before the call started."""
        return any(
            isinstance(start.decided.get(each.id), Grant)
            and each.tool_name == call.name
            and each.arguments == call.arguments
            for each in self._approvals_of(call)
        )


def _arguments_match_schema(call: ToolCall, tool: Tool) -> bool:
    """Return True if the arguments of a call match the schema of the tool. Other calls were rejected before they ran."""
    try:
        tool.argument_validator.validate(call.arguments)
    except InvalidArguments:
        return False
    return True


@attrs.frozen
class _StoredState:
    """Recorded state of a session, in place of the session that `Isolation` expects."""

    state_values: Mapping[str, Any]


@attrs.frozen
class _Lookup:
    """Lookup of tools by name, in place of the registry that `Isolation` expects."""

    tools: Mapping[str, Tool]

    def get(self, name: str) -> Tool | None:
        return self.tools.get(name)
