"""A FastAPI service with users, sessions, server-sent events, approvals in another request, and HTTP statuses for errors.

Start the service with `uvicorn service:app --timeout-graceful-shutdown 5`, so that open event streams do not delay its end.
The agents run on trio in a background thread, behind a portal. All state is in the journal, so a restarted service continues.
"""

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Header, HTTPException, Request
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel

from actgent import (
    LLM,
    ActgentError,
    ApprovalAlreadyDecided,
    Approve,
    BareAgent,
    InboxFull,
    JournalError,
    LimitReached,
    MessageTooLarge,
    Reject,
    ScriptedLLM,
    SessionClosed,
    SessionNotFound,
    ToolCall,
    UsageError,
    open_portal,
    tool,
)

USERS = {"token-of-ada": "ada", "token-of-bob": "bob", "token-of-eve": "eve"}
"""User names by bearer token; replace this table with your own authentication."""
APPROVERS = {"eve"}
STATUSES: Mapping[type[ActgentError], int] = {
    SessionNotFound: 404,  # and its subclass WrongOwner: the session of another user
    SessionClosed: 409,
    ApprovalAlreadyDecided: 409,
    MessageTooLarge: 413,
    InboxFull: 429,
    LimitReached: 429,
    JournalError: 503,
    UsageError: 400,
}


class NewMessage(BaseModel):
    """The body of a message. Clients choose the id, so that they can repeat a request safely."""

    id: str
    text: str


class NewDecision(BaseModel):
    """The body of a decision."""

    approve: bool
    reason: str = ""


@tool(approval=True, effect="idempotent")
async def refund(order: int, euros: int) -> str:
    """Refund an order."""
    return f"refunded {euros} euros for order {order}"


async def current_user(authorization: Annotated[str, Header()] = "") -> str:
    user = USERS.get(authorization.removeprefix("Bearer "))
    if user is None:
        raise HTTPException(401, "unknown token")
    return user


async def current_approver(user: Annotated[str, Depends(current_user)]) -> str:
    if user not in APPROVERS:
        raise HTTPException(403, f"{user} may not decide approvals")
    return user


User = Annotated[str, Depends(current_user)]
Approver = Annotated[str, Depends(current_approver)]


def make_app(llm: LLM | str, journal: str) -> FastAPI:
    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[None, None]:
        async with open_portal(journal=journal) as portal:  # resumes the sessions of the last process
            app.state.desk = await portal.start(BareAgent("desk", llm=llm, tools=[refund]))
            yield

    app = FastAPI(lifespan=lifespan)

    @app.exception_handler(ActgentError)
    async def respond_to_error(_: Request, error: ActgentError) -> JSONResponse:
        status = next((status for kind, status in STATUSES.items() if isinstance(error, kind)), 500)
        headers = {"retry-after": "1"} if status in {429, 503} else None
        return JSONResponse({"error": type(error).__name__, "detail": str(error)}, status, headers)

    @app.post("/sessions/{session_id}/messages", status_code=202)
    async def send(session_id: str, message: NewMessage, user: User) -> dict[str, str]:
        """Accept a message: it is in the journal when the response is sent. The answer is an event."""
        session = await app.state.desk.ensure_session(user, session_id)
        await session.chat(message.text, message_id=message.id)
        return {"session": session.id, "message": message.id}

    @app.get("/sessions/{session_id}/events")
    async def events(
        session_id: str, user: User, last_event_id: Annotated[int, Header()] = 0
    ) -> StreamingResponse:
        """Stream the events of a session; a client resumes with the header `Last-Event-ID`."""
        session = await app.state.desk.open_session(session_id, owner=user)

        async def lines() -> AsyncGenerator[str, None]:
            async with session.observe(after=last_event_id) as observed:
                async for each in observed:
                    data = json.dumps({"title": each.title, "content": each.content}, default=str)
                    yield f"id: {observed.cursor}\nevent: {each.type.lower()}\ndata: {data}\n\n"

        return StreamingResponse(lines(), media_type="text/event-stream")

    @app.get("/approvals", dependencies=[Depends(current_approver)])
    async def approvals() -> list[dict[str, Any]]:
        """List the open approvals of all users, for approvers."""
        waiting = await app.state.desk.approvals()
        return [
            {"id": each.id, "owner": each.owner, "tool": each.tool_name, "arguments": dict(each.arguments)}
            for each in waiting
        ]

    @app.post("/approvals/{approval_id:path}", status_code=204)
    async def decide(approval_id: str, decision: NewDecision, user: Approver) -> None:
        """Decide an approval; the turn then resumes, also if the service was restarted since."""
        chosen = Approve(decision.reason) if decision.approve else Reject(decision.reason)
        await app.state.desk.answer(approval_id, chosen, by=user)

    return app


def script(chat: Any) -> Any:
    """Replace the model: call the tool once, then answer with its result."""
    last = chat.messages[-1]
    if last.role == "user":
        return ToolCall("refund", {"order": 7, "euros": 20})
    return f"Done: I {last.parts[0].content}."


app = make_app(ScriptedLLM(script), "sqlite:///desk.db")  # with an API key: make_app("openai:gpt-5.2", ...)
