"""Operations of A2A 1.0, the same for both bindings. Source: A2A specification 1.0, section 3."""

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import attrs
import orjson
import trio

from actgent.agents.session import session_of_context
from actgent.approvals import Approval
from actgent.errors import ApprovalAlreadyDecided
from actgent.interop.request_field_parsing import to_client_id
from actgent.interop.run_events import RunEvent
from actgent.interop.runs_of_protocol_requests import (
    Run,
    collect,
    existing_session,
    find_session,
    suspended_session,
)
from actgent.journal.journal_interface import SessionSummary
from actgent.messages import Sender
from actgent.runtime.approval_decisions import approvals_of
from actgent.web.access_control import encode_cursor, parse_cursor
from actgent.web.problem_documents import Problem
from actgent.web.routes.common_request_schemas import CLIENT_ID
from actgent.web.routes.endpoints import HTTPCall
from actgent.web.streaming.session_events import find_message

from .errors import A2AError, invalid, task_not_found
from .json_conversion import (
    STATES,
    Wire,
    check_output_modes,
    count_param,
    object_param,
    parts_to_content,
    read_decisions,
    read_parts,
    text_param,
    time_param,
)
from .push_notification_outbox import read_config
from .settings import A2ASettings
from .task_states import COMPLETED, INPUT_REQUIRED, SEPARATOR, TaskState, read_task_states, to_stream_event

PAGE_SIZE = 50
MAX_PAGE_SIZE = 100
MAX_LISTED_SESSIONS = 200
"""Maximum number of sessions whose tasks are listed, the last changed first."""
MAX_LISTED_RECORDS = 2000
"""Maximum number of records of a session that are searched for tasks, the newest first."""
CANCEL_SECONDS = 10
"""Seconds to wait for the end of a cancelled task."""
_PUSH_CONFIG = "taskPushNotificationConfig"
_CLIENT_ID = re.compile(CLIENT_ID)
Params = Mapping[str, Any]


@attrs.frozen(kw_only=True)
class TaskStream:
    """A run and its A2A task, for a response that streams the updates of the task."""

    run: Run
    task: TaskState
    """State of the task before the first event of the run."""
    first: Wire
    """Task object that is the first event of the stream."""

    def encode(self, event: RunEvent) -> list[Wire]:
        """Update the task from an event of its run, and return the events of the A2A stream for it."""
        return [to_stream_event(each) for each in self.task.apply(event)]


@attrs.frozen(kw_only=True)
class _MessageRequest:
    """Validated A2A request to send a message."""

    run: Run
    task: TaskState
    history: int | None
    is_immediate: bool
    is_new: bool
    """True if the message starts a new task. False if it continues or repeats an existing one."""


async def send_message(settings: A2ASettings, call: HTTPCall, agent: str, params: Params) -> Wire:
    """Send a message to an agent. Return its task after the run has ended, or at once with `returnImmediately`.

    If an answer of one of `settings.message_types` completes a new task, the answer is returned as a message.
    """
    asked = await _prepare(settings, call, agent, params)
    if asked.is_immediate:
        async with asked.run.open(streams=False):  # accepted; its turn does not depend on this request
            _, task = await find_task(call, agent, asked.task.task_id)
        return {"task": task.to_wire(history=asked.history)}
    for event in await collect(asked.run):
        for _ in asked.task.apply(event):
            pass
    is_completed = asked.is_new and asked.task.state == COMPLETED
    if is_completed and asked.task.answer_type in settings.message_types:
        return {"message": asked.task.to_message()}
    return {"task": asked.task.to_wire(history=asked.history)}


async def stream_message(settings: A2ASettings, call: HTTPCall, agent: str, params: Params) -> TaskStream:
    """Send a message to an agent, and return the stream of its task."""
    asked = await _prepare(settings, call, agent, params)
    return TaskStream(run=asked.run, task=asked.task, first=asked.task.to_wire(history=asked.history))


async def _prepare(settings: A2ASettings, call: HTTPCall, agent: str, params: Params) -> _MessageRequest:
    message, configuration = object_param(params, "message"), object_param(params, "configuration")
    history = count_param(configuration, "historyLength")
    is_immediate = configuration.get("returnImmediately") or False
    if not isinstance(is_immediate, bool):
        raise invalid("configuration.returnImmediately", "must be true or false")
    message_id = to_client_id(text_param(message, "messageId", field="message.messageId"))
    if message.get("role") != "ROLE_USER":
        raise invalid("message.role", "must be ROLE_USER")
    parts = read_parts(message, settings.input_modes)
    check_output_modes(configuration, settings.output_modes)
    context_id = message.get("contextId") or ""
    if not isinstance(context_id, str) or (context_id and not _CLIENT_ID.fullmatch(context_id)):
        raise invalid("message.contextId", "must have 1 to 128 characters of A-Z a-z 0-9 . _ -")
    is_new = not message.get("taskId")
    if not is_new:
        task_id = text_param(message, "taskId", field="message.taskId")
        run, task = await _decide(call, agent, task_id, context_id, parts)
    else:
        session_id = context_id or _new_context(call.caller.owner, agent, message_id, parts)
        run, task = await _new_run(call, agent, session_id, message_id, parts)
    await _add_push_config(settings, call, agent, task, object_param(configuration, _PUSH_CONFIG))
    return _MessageRequest(run=run, task=task, history=history, is_immediate=is_immediate, is_new=is_new)


def session_of_message(settings: A2ASettings, call: HTTPCall, agent: str, params: Params) -> str:
    """Return the id of the session to which a message is sent; empty if the message is invalid and will be rejected."""
    with suppress(Problem):
        message = object_param(params, "message")
        if message.get("taskId"):
            return session_of_task(text_param(message, "taskId"))
        context_id = message.get("contextId") or ""
        if context_id:
            return context_id if isinstance(context_id, str) else ""
        message_id = to_client_id(text_param(message, "messageId"))
        return _new_context(call.caller.owner, agent, message_id, read_parts(message, settings.input_modes))
    return ""


def session_of_task(task_id: object) -> str:
    """Return the id of the session of a task, from the task id; empty if this server has not created the task id."""
    session_id, separator, _ = task_id.partition(SEPARATOR) if isinstance(task_id, str) else ("", "", "")
    return session_id if separator else ""


async def _add_push_config(
    settings: A2ASettings, call: HTTPCall, agent: str, task: TaskState, params: Params
) -> None:
    """Store the push notification configuration that a message request contains, so that all updates of its task are sent."""
    if not params:
        return
    outbox = await settings.push.require(call.gateway)
    head = await call.gateway.access.head(call.caller, task.session_id, agent)
    config = await read_config(
        outbox.webhook, params, head, task.message_id, field=f"configuration.{_PUSH_CONFIG}."
    )
    await outbox.configs.add(config)


def _new_context(owner: str, agent: str, message_id: str, parts: Sequence[Mapping[str, Any]]) -> str:
    """Derive a context id for a message without a context.

    A repeated message gets the same context. A message with the same id but different content gets another context, because
    message ids are unique only within a context, and some clients reuse them.
    """
    known = orjson.dumps([owner, agent, message_id, parts], option=orjson.OPT_SORT_KEYS)
    return hashlib.blake2b(known, digest_size=16, person=b"actgent.a2a").hexdigest()


async def _new_run(
    call: HTTPCall, agent: str, session_id: str, message_id: str, parts: Sequence[Mapping[str, Any]]
) -> tuple[Run, TaskState]:
    content = parts_to_content(parts)
    try:
        session = await find_session(call, agent, session_id)
    except Problem as problem:
        if problem.kind == "not-found":
            raise task_not_found() from None
        raise
    run = Run(call=call, session=session, message_id=message_id, content=content, is_whole=True)
    known = ("text", "raw", "url", "data", "filename", "mediaType")
    echoed = [{name: part[name] for name in known if name in part} for part in parts]
    return run, TaskState(session.id, message_id, echoed, call.gateway.access.runtime.clock.now())


async def _decide(
    call: HTTPCall, agent: str, task_id: str, context_id: str, parts: Sequence[Mapping[str, Any]]
) -> tuple[Run, TaskState]:
    """Record the approval decisions that a message to a waiting task contains. Return the run and the state of the task."""
    head, task = await find_task(call, agent, task_id)
    if context_id and context_id != head.session_id:
        raise invalid(
            "message.contextId", f"is {context_id!r}, but the task belongs to the context {head.session_id!r}"
        )
    is_repeated = any(
        isinstance(each.get("data"), dict) and each["data"].keys() & task.requested_approvals
        for each in parts
    )
    if task.state != INPUT_REQUIRED and not is_repeated:
        reason = (
            "has ended"
            if task.has_ended
            else "is running: wait for its end, or send a message without taskId"
        )
        raise A2AError("UNSUPPORTED_OPERATION", f"the task {reason}")
    if not call.caller.allows("approve"):
        raise Problem(
            "forbidden",
            "a message to a task that waits for a decision requires a token with the scope `approve`",
        )
    session = (await existing_session(call, agent, head.session_id))[0]
    if task.state == INPUT_REQUIRED:
        session = await suspended_session(call, agent, head.session_id)
        waiting = [each for each in session.approvals if each.id in task.requested_approvals]
        if waiting or not is_repeated:
            for key, decision in read_decisions(parts, waiting).items():
                with suppress(ApprovalAlreadyDecided):
                    await session.answer(key, decision, by=Sender(call.caller.owner))
    run = Run(call=call, session=session, message_id=task.message_id, is_read=True, is_whole=True)
    first = TaskState(task.session_id, task.message_id, task.request, call.gateway.access.runtime.clock.now())
    return run, first


async def get_task(call: HTTPCall, agent: str, params: Params) -> Wire:
    """Return a task of the caller, with its state and history."""
    history = count_param(params, "historyLength")
    _, task = await find_task(call, agent, text_param(params, "id"))
    return task.to_wire(history=history)


async def stop_task(call: HTTPCall, agent: str, params: Params) -> Wire:
    """Interrupt a task, and return the task after it has ended, at most `CANCEL_SECONDS` later."""
    task_id = text_param(params, "id")
    head, task = await find_task(call, agent, task_id)
    if task.has_ended:
        raise A2AError("TASK_NOT_CANCELABLE", "the task has already ended")
    session = await call.gateway.access.session(call.caller, head.session_id, agent)
    with trio.move_on_after(CANCEL_SECONDS):
        await session.interrupt("cancelled by the client", message_id=task.message_id)
    _, task = await find_task(call, agent, task_id)
    return task.to_wire()


async def subscribe(call: HTTPCall, agent: str, params: Params) -> TaskStream:
    """Return the stream of a task that has not ended: the current state of the task, then all updates of its run."""
    head, task = await find_task(call, agent, text_param(params, "id"))
    if task.has_ended:
        raise A2AError("UNSUPPORTED_OPERATION", "the task has ended: use GetTask instead of a subscription")
    session = (await existing_session(call, agent, head.session_id))[0]
    run = Run(
        call=call,
        session=session,
        message_id=task.message_id,
        is_read=True,
        is_whole=True,
        continues_after_suspension=True,
    )
    begin = TaskState(task.session_id, task.message_id, task.request, task.at)
    return TaskStream(run=run, task=begin, first=task.to_wire())


async def list_task_page(call: HTTPCall, agent: str, params: Params) -> Wire:
    """Return a page of the caller's tasks, the last changed first."""
    size = count_param(params, "pageSize", minimum=1, maximum=MAX_PAGE_SIZE) or PAGE_SIZE
    history, since = count_param(params, "historyLength") or 0, time_param(params, "statusTimestampAfter")
    context_id, status = params.get("contextId") or "", params.get("status") or ""
    if not isinstance(context_id, str):
        raise invalid("contextId", "must be a string")
    if status == "TASK_STATE_UNSPECIFIED":
        status = ""
    if status and status not in STATES:
        raise invalid("status", "must be the name of a task state")
    has_artifacts = params.get("includeArtifacts") or False
    if not isinstance(has_artifacts, bool):
        raise invalid("includeArtifacts", "must be true or false")
    place = _read_token(params)
    tasks = await _all_tasks(call, agent, context_id)
    found = [each for each in tasks if each.at >= since and status in ("", each.state)]
    found.sort(key=_place, reverse=True)
    rest = found if place is None else [each for each in found if _place(each) < place]
    page = rest[:size]
    return {
        "tasks": [each.to_wire(history=history, has_artifacts=has_artifacts) for each in page],
        "nextPageToken": encode_cursor(_place(page[-1])) if len(rest) > size else "",
        "pageSize": size,
        "totalSize": len(found),
    }


def _place(task: TaskState) -> tuple[float, str]:
    return task.at, task.task_id


def _read_token(params: Params) -> tuple[float, str] | None:
    token = params.get("pageToken") or ""
    if not isinstance(token, str):
        raise invalid("pageToken", "must be a string")
    if not token:
        return None
    try:
        at, task_id = parse_cursor(token, float, str)
    except Problem:
        raise invalid("pageToken", "must be the nextPageToken of an earlier page") from None
    return at, task_id


async def _all_tasks(call: HTTPCall, agent: str, context_id: str) -> list[TaskState]:
    """Return the tasks of one context (session). If `context_id` is empty, return tasks of the caller's last changed sessions."""
    access = call.gateway.access
    if context_id:
        try:
            heads: Sequence[SessionSummary] = [await access.head(call.caller, context_id, agent)]
        except Problem:
            heads = []
    else:
        most = MAX_LISTED_SESSIONS
        heads = (await access.page(call.caller, {"agent": agent, "limit": most}, most)).items
    found: list[TaskState] = []
    for head in heads:
        after = max(0, head.records - MAX_LISTED_RECORDS)
        found += (
            await read_task_states(access.journal, head, await _approvals(call, head), after=after)
        ).values()
    return [each for each in found if _CLIENT_ID.fullmatch(each.message_id)]


async def find_task(call: HTTPCall, agent: str, task_id: str) -> tuple[SessionSummary, TaskState]:
    """Return the summary of a task's session and the state of the task.

    Raises:
        A2AError: The caller has no such task.
    """
    session_id, _, message_id = task_id.partition(SEPARATOR)
    if not _CLIENT_ID.fullmatch(session_id) or not _CLIENT_ID.fullmatch(message_id):
        raise task_not_found()
    access = call.gateway.access
    try:
        head = await access.head(call.caller, session_id, agent)
    except Problem:
        raise task_not_found() from None
    progress = await find_message(access.journal, head.key, message_id, head.records)
    if progress is None:
        raise task_not_found()
    approvals = await _approvals(call, head)
    after = progress.number - 1
    tasks = await read_task_states(access.journal, head, approvals, after=after, message_id=message_id)
    if (task := tasks.get(message_id)) is None:
        raise task_not_found()
    return head, task


async def _approvals(call: HTTPCall, head: SessionSummary) -> Callable[[], Sequence[Approval]]:
    """Return a function that returns the open approvals of a session; it returns none if the session is not suspended."""
    found: Sequence[Approval] = ()
    if head.suspended:
        opener = call.gateway.access.runtime.agents.opener(head.agent)
        if (loaded := opener.find_loaded(head.session_id)) is not None:
            session = session_of_context(loaded)
            found = (*session.approvals, *session.caller_calls)
        else:
            found = await approvals_of(opener.running, head.session_id)
    return lambda: found
