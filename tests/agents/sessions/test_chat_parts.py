"""The two halves of `chat`, values that a program passes to handlers, and sentences for users."""

import pytest

from actgent import (
    BareAgent,
    ConfigurationError,
    Event,
    Failure,
    LimitReached,
    Limits,
    ModelTimeout,
    NotAuthorized,
    ParseError,
    Priority,
    ProviderUnavailable,
    QuotaExhausted,
    RateLimited,
    Reply,
    ScriptedLLM,
    Sender,
    SessionNotFound,
    ToolResult,
    UnsupportedPart,
    open_runtime,
)


@pytest.mark.parametrize("journal", [None, "memory:"])
async def test_made_message_is_received_like_a_chat(journal):
    """Making a message does not send it. A received message is answered once, with its sender and priority."""
    async with open_runtime(journal=journal) as runtime:
        agent = await runtime.start(BareAgent("clerk", llm=ScriptedLLM(["Hello."])))
        session = await agent.create_session("ada")
        message = session.create_message("hi", Sender("bob"), priority="high", message_id="m")
        assert (message.sender.name, message.priority, session.history) == ("bob", Priority.HIGH, ())
        assert [await agent.receive(message), await agent.receive(message)] == ["m", "m"]
        await session.wait_idle()
        assert [each.text for each in session.history] == ["hi", "Hello."]
        assert session.create_message("mine").sender == session.owner


async def test_receive_rejects_messages_that_cannot_be_chatted():
    """Texts, results of tools, and messages of sessions that this agent does not have, are refused."""
    async with BareAgent("clerk", llm=ScriptedLLM([])) as agent:
        session = await agent.create_session("ada")
        with pytest.raises(ConfigurationError, match="create_message"):
            await agent.receive("hi")
        made = session.create_message("hi")
        result = ToolResult(id="r", call_id="c", tool_name="t", status="success", content="x")
        with pytest.raises(TypeError, match="ToolResult"):
            await agent.receive(type(made)(session_id=session.id, sender=made.sender, parts=(result,)))
        with pytest.raises(SessionNotFound):
            await agent.receive(type(made)(session_id="other", sender=made.sender, parts=made.parts))
        assert session.history == ()


async def test_program_passes_outcomes_to_handlers(listen):
    """Each kind reaches its own handlers, and the record is unchanged."""
    async with BareAgent("clerk", llm=ScriptedLLM([])) as agent:
        session = await agent.create_session("ada")
        received = listen(session)
        values = [Reply(text="hello"), Event(name="order", data={"id": 7})]
        for delivery in values:
            await session.inject(delivery)
        assert (received, session.history, session.status) == (values, (), "idle")
        with pytest.raises(ConfigurationError, match="takes a delivery"):
            await session.inject("hello")


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (400, "improperly formatted"),
        (401, "Authentication failed"),
        (402, "no credit"),
        (404, "not found"),
        (408, "too long"),
        (413, "too long"),
        (422, "process this input"),
        (429, "rate limit"),
        (500, "issues"),
        (503, "issues"),
        (None, "unexpected error"),
    ],
)
def test_a_failure_has_a_sentence_for_users(status, expected):
    """The sentence depends on the provider's status, and repeats no word of the error."""
    error = ProviderUnavailable("secret detail", status=status)
    failure = Failure(kind="model", error=error, message_id="m")
    assert expected in failure.user_message
    assert "secret" not in failure.user_message


def test_failures_of_actgent_have_sentences_by_kind():
    failure = Failure(kind="limit", error=LimitReached("tokens", 5), message_id="m")
    assert "limit" in failure.user_message


@pytest.mark.parametrize(
    ("error", "kind", "expected"),
    [
        (ModelTimeout("secret after 5 s"), "model", "took too long"),
        (RateLimited("secret"), "model", "rate limit"),
        (NotAuthorized("secret"), "model", "Authentication failed"),
        (QuotaExhausted("secret"), "model", "no credit"),
        (UnsupportedPart("secret"), "model", "attached"),
        (ParseError("secret", "raw secret"), "parse", "no usable answer"),
    ],
)
async def test_errors_without_a_status_have_sentences_by_class(error, kind, expected, listen):
    """Handlers get such errors of a failing model. The sentence repeats no word of the error."""

    def answer(_):
        raise error

    limits = Limits(output_retries=0)
    async with BareAgent("clerk", llm=ScriptedLLM(answer), limits=limits) as agent:
        session = await agent.create_session("ada")
        received = listen(session)
        await session.chat("hi")
        await session.wait_idle()
    (failure,) = [each for each in received if isinstance(each, Failure)]
    assert expected in failure.user_message
    assert "secret" not in failure.user_message
    assert failure.kind in (kind, "model")
