"""Preview of an agent's next start: how it resumes a session whose turn is unfinished.

The preview uses the records of the session, and the current tools, modes and approval rules of the agent. No model is
called, no tool runs, and nothing is written.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import cast

import attrs

from actgent.agents.agent import Agent
from actgent.approvals import Approve
from actgent.errors import AnswerError, ApprovalRequired
from actgent.errors.text_escaping import counted
from actgent.journal.record_types import AgentMessageRecord, Record
from actgent.llm.model_interface import ModelResponse, StopReason
from actgent.memory.short_term_memory import ShortTermMemory
from actgent.messages import Message, Sender, ToolCall
from actgent.protocols.protocol_interface import CallTools, TurnView
from actgent.sessions.conversation import SessionConversation
from actgent.sessions.pending.approval_ledger import ApprovalLedger
from actgent.sessions.pending.tool_call_approvals import edited, grants_of
from actgent.sessions.pending.turn_checkpoint import TurnCheckpoint
from actgent.sessions.restore.record_replayer import creation_record_of
from actgent.sessions.restore.session_loader import restore
from actgent.sessions.session_context import SessionContext
from actgent.tools.tool_execution import Batch
from actgent.tools.tool_interface import ToolContext
from actgent.turns.calls.approval_requests import approval_question


@attrs.frozen(kw_only=True)
class RestartPreview:
    """Predicted effects of the agent's next start on one session, as texts."""

    resumes: tuple[str, ...] = ()
    """Texts of effects that need no attention, such as turns that resume and messages that are answered."""
    changes: tuple[str, ...] = ()
    """Texts of effects that need attention: calls that do not run, or whose outcome is unknown."""


async def preview_restart(agent: Agent, session_id: str, records: Sequence[Record]) -> RestartPreview:
    """Return a preview of how an agent would resume a session with these journal records at the next start of the agent."""
    if creation_record_of(records) is None:
        return RestartPreview(changes=("its records do not begin as those of a session",))
    context = SessionContext(session_id, Sender("nobody"), SessionConversation(ShortTermMemory().open_view()))
    restored = await restore(records, context)
    context.owner = restored.owner
    good: list[str] = []
    bad: list[str] = []
    resume = context.checkpoint
    for word, is_bad in _turn_effects(agent, context, resume) if resume is not None else ():
        (bad if is_bad else good).append(word)
    begun = 0 if resume is None else 1 + len(resume.joined)
    if waiting := len(restored.waiting) - min(begun, 1):
        good.append(counted(waiting, "waiting message is answered", "waiting messages are answered"))
    if prompt := _prompt_change(agent, context, records):
        good.append(prompt)
    return RestartPreview(resumes=tuple(good), changes=tuple(bad))


def _turn_effects(
    agent: Agent, context: SessionContext, resume: TurnCheckpoint
) -> Iterator[tuple[str, bool]]:
    """Yield a text for each effect of the next start on an unfinished turn, with True if the effect needs attention."""
    last = context.conversation.last_message
    if last is None or not resume.stop:
        yield "the model is asked", False
        return
    ledger = context.approvals or ApprovalLedger()
    calls = () if last.cut else last.tool_calls
    if not calls:
        yield _text_answer(agent, context, resume, last)
    for call in calls:
        if call.id in resume.finished:
            continue
        yield _call(agent, context, resume, ledger, call)


def _call(
    agent: Agent, context: SessionContext, resume: TurnCheckpoint, ledger: ApprovalLedger, call: ToolCall
) -> tuple[str, bool]:
    tool = agent.tools.get(call.name)
    is_asked = ledger.open_of(call.id) is not None
    verdict = ledger.verdict(call.id)
    if verdict is not None and verdict.grant is None:
        return f"tool {call.name!r} returns its approval decision as the result", False
    grants = {call.id: Approve()} if is_asked else dict(grants_of(ledger, [call]))
    call_context = ToolContext(
        session_id=context.id, owner=context.owner.name, agent=agent.name, state=context.seen_state
    )
    rule = agent.approval_rule
    batch = Batch(
        [edited(call, grants)],
        agent.tools,
        context=call_context,
        check=None
        if agent.modes is None
        else lambda call, tool: agent.modes.refusal(call, tool, call_context),  # type: ignore[union-attr]
        ask=None if rule is None else partial(approval_question, rule, call_context),
        grants=grants,
    )
    if call.id in resume.started and (tool is None or tool.effect == "once"):
        why = "its tool is gone" if tool is None else "it had begun, and its effect is once"
        return f"tool {call.name!r}: outcome unknown, as {why}", True
    try:
        obstacle = batch.rejection_of(0)
    except Exception as error:  # noqa: BLE001 - an approval rule is user code, and may need an open session
        return f"tool {call.name!r}: unknown, because a rule of the agent raised {type(error).__name__}", True
    return _word(call, obstacle, is_begun=call.id in resume.started, is_asked=is_asked)


def _word(call: ToolCall, obstacle: Exception | None, *, is_begun: bool, is_asked: bool) -> tuple[str, bool]:
    name = f"tool {call.name!r}"
    reason = "it needs an approval now" if isinstance(obstacle, ApprovalRequired) else str(obstacle)[:200]
    if obstacle is not None and is_begun:
        return f"{name}: outcome unknown, as it had begun, and {reason}", True
    if is_asked:
        return (
            (f"{name} waits for an approval", False)
            if obstacle is None
            else (f"{name} waits for an approval, and fails when approved: {reason}", True)
        )
    if isinstance(obstacle, ApprovalRequired):
        return f"{name}: an approval is requested", False
    if obstacle is not None:
        return f"{name} does not run: {reason}", True
    return f"{name} runs{' again' if is_begun else ''}", False


def _text_answer(
    agent: Agent, context: SessionContext, resume: TurnCheckpoint, last: Message
) -> tuple[str, bool]:
    """Return the effect of the next start on a recorded text answer as text, and True if it needs attention.

    The current code of the protocol may read the answer `last` as tool calls, as a reply, or not at all.
    """
    asked = next(
        (each for each in reversed(context.conversation.messages) if each.id == last.causation_id), last
    )
    view = TurnView(
        message=asked,
        record=context.conversation.messages,
        state=context.state_at(resume.state_number),
        stage=asked.stage,
        profile=agent.profile,
        tools=agent.tools.specs,
    )
    try:
        answer = ModelResponse(parts=last.parts, stop=cast("StopReason", resume.stop))
        reads = any(isinstance(each, CallTools) for each in agent.protocol.read(answer, view))
    except AnswerError:
        reads = False
        if not resume.unfinished_calls:
            return "its last answer cannot be read, and the model is asked again", True
    if resume.unfinished_calls and not reads:
        return (
            "its last answer began tools, and is not read as calls: outcome unknown, the model is asked again",
            True,
        )
    if resume.is_redacted and reads:
        return (
            "its last answer called tools, and is redacted: they do not run, the model is asked again",
            True,
        )
    return ("the calls in its last answer resume" if reads else "its last answer is delivered"), False


def _prompt_change(agent: Agent, context: SessionContext, records: Sequence[Record]) -> str:
    """Return a notice if the system prompt or the tools have changed since the last recorded model call; empty otherwise."""
    last = next(
        (each.prompt for each in reversed(records) if isinstance(each, AgentMessageRecord) and each.prompt),
        "",
    )
    system = context.conversation.system
    if system is None:
        system = agent.prompts.session_prompt(context, context.conversation.current_view())
    now = agent.prompts.fingerprint(system, agent.tools.specs)
    return "" if last in ("", now) else "its system prompt or its tools have changed"
