"""Mistakes around services, files, schedules and the command line: each has one error that names the cause and the remedy."""

import asyncio
import gc
import sqlite3
import sys
from datetime import UTC, datetime, timedelta

import httpx2
import pytest

from actgent import (
    ActgentError,
    BareAgent,
    ConfigurationError,
    InvalidToolSchema,
    JournalDamaged,
    Limits,
    LongTermMemory,
    MCPServer,
    PermissionDenied,
    Pipeline,
    Policy,
    RateLimiter,
    Retention,
    ScriptedLLM,
    SessionNotFound,
    ShortTermMemory,
    SummarizingMemory,
    Tool,
    connect,
    delegation_tools,
    open_gateway,
    open_portal,
    open_runtime,
    tool,
)
from actgent.llm.retry_policy import Retry


@pytest.fixture
def told(caplog):
    """Return the log records of the package as strings."""
    return lambda: [each.getMessage() for each in caplog.records if each.name.startswith("actgent")]


def clerk(*texts, **options) -> BareAgent:
    return BareAgent("clerk", llm=ScriptedLLM(list(texts) or ["Yes."], repeat=not texts), **options)


# --- sessions and portals -------------------------------------------------------------------------


async def test_a_repeated_message_id_with_another_content_is_logged(told):
    """The id makes a retry safe, so the second content is dropped. A retry with the same content logs nothing."""
    async with clerk() as agent:
        session = await agent.create_session("ada", session_id="s")
        for content in ("hi", "hi", "bye"):
            await agent.run(content, session=session, message_id="m1")
    (record,) = told()
    assert record == (
        "session s: a message repeats message_id='m1' with another content, and is dropped: "
        "use a new message_id for each message"
    )


def test_failed_portal_logs_no_second_traceback(tmp_path):
    """The error is raised once. asyncio would log it again as a future whose exception was never read."""
    lost = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: lost.append(context))
        with pytest.raises(ActgentError):
            async with open_portal(journal=f"sqlite:///{tmp_path}/none/a.db"):
                pass
        gc.collect()
        await asyncio.sleep(0)

    asyncio.run(main())
    assert lost == []


async def test_journal_with_a_deleted_file_raises_a_hint(tmp_path):
    """The error names the other files of the journal, and says how to start a new journal."""
    path, log = tmp_path / "a.db", tmp_path / "a.db-wal"
    async with open_runtime(journal=f"sqlite:///{path}") as runtime:
        agent = await runtime.start(clerk())
        await agent.run("hi", session=await agent.create_session("ada"))
        left = log.read_bytes()
    path.unlink()
    log.write_bytes(left)
    with pytest.raises(JournalDamaged, match=r"a new journal by moving .*a\.db-wal and .*a\.db-lock away"):
        async with open_runtime(journal=f"sqlite:///{path}"):
            pass


async def test_last_line_of_a_failed_server_is_logged(told, tmp_path):
    """A traceback names its error in the last line, so a long output is cut at its beginning."""
    script = tmp_path / "server.py"
    script.write_text(f"def {'long' * 40}():\n    import no_such_module\n{'long' * 40}()\n", encoding="utf-8")
    server = MCPServer(command=sys.executable, args=[str(script)], name="notes")
    async with clerk(tools=[server]):
        pass
    (record,) = told()
    assert "its process ended with 1; its last output: ..." in record
    assert "No module named 'no_such_module'; next attempt in 1 s" in record


# --- types and units -----------------------------------------------------------------------------


def look(day: str) -> str:
    """Look."""
    return day


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (
            lambda: ScriptedLLM(["x"], delay="1s"),
            "delay= must be a number of seconds of at least 0, not '1s'",
        ),
        (
            lambda: ScriptedLLM(["x"], chunk_delay=-1),
            "chunk_delay= must be a number of seconds of at least 0",
        ),
        (
            lambda: ScriptedLLM(["x"], chunk=1.5),
            "chunk= must be a number of characters of at least 1, not 1.5",
        ),
        (
            lambda: ScriptedLLM(lambda: "x"),
            "must accept the request as its only required argument, as in `def answer(chat)`",
        ),
        (
            lambda: ScriptedLLM([lambda _, more: more]),
            "must accept the request as its only required argument, as in `def answer(chat)`",
        ),
        (
            lambda: Limits(model_calls=2.5),
            "Limits(model_calls=...) must be a whole number of at least 1, not 2.5",
        ),
        (lambda: Limits(cost="$3"), "Limits(cost=...) must be a number of US dollars above 0, not '$3'"),
        (lambda: ShortTermMemory(max_tokens="8k"), "ShortTermMemory(max_tokens=...) must be a whole number"),
        (lambda: ShortTermMemory(max_tokens=0), "at least 1, not 0"),
        (lambda: SummarizingMemory(keep="all"), "SummarizingMemory(keep=...) must be a whole number"),
        (lambda: Retry(attempts="3"), "Retry(attempts=...) must be a whole number of at least 1, not '3'"),
        (lambda: Retry(first_delay="1s"), "Retry(first_delay=...) must be a number of at least 0"),
        (
            lambda: RateLimiter(requests_per_minute="60"),
            "(requests_per_minute=...) must be a number above 0, not '60'",
        ),
        (
            lambda: RateLimiter(burst="10%"),
            "(burst=...) must be a fraction of the limit above 0 and up to 1, not '10%'",
        ),
        (
            lambda: RateLimiter(age_step="1s"),
            "(age_step=..., max_pause=...) must be numbers of seconds of at least 0",
        ),
        (
            lambda: Retention(closed="30d"),
            "an age of Retention must be seconds of at least 0 or a timedelta, not '30d'",
        ),
        (lambda: Policy(violation="stop"), "Policy(violation=) must be 'ask' or 'refuse', not 'stop'"),
        (
            lambda: LongTermMemory("memory:", half_life="30d"),
            "half_life= must be a number of days above 0, or None",
        ),
        (lambda: clerk(approval=lambda _: True), "write approval=lambda call, tool, context: ..."),
        (lambda: clerk(recall_before_answer=True), "needs long_term_memory=LongTermMemory(...)"),
        (lambda: clerk(long_term_memory="sqlite:///m.db"), "LongTermMemory('sqlite:///memories.db')"),
        (lambda: clerk(modes=["plan", "act"]), "modes= must be Modes(...), not ['plan', 'act']"),
        (lambda: delegation_tools(allowed="workshop"), "allowed=['workshop']"),
        (lambda: tool(untrusted="yes")(look), "untrusted= (or outside=) must be True or False, not 'yes'"),
        (lambda: tool(sinks=("too",))(look), "sinks= names 'too', which is not a parameter of the tool"),
        (lambda: tool(name="my tool!")(look), "a-z, A-Z, 0-9, _, . and -: pass name="),
    ],
)
def test_service_values_of_a_wrong_type_are_rejected(made, expected):
    """The error names the argument, the unit and the value, and is raised by the call with the mistake."""
    with pytest.raises(ConfigurationError) as caught:
        made()
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (lambda: Policy(mode="strict"), "Policy() has no argument 'mode': write violation='ask'"),
        (lambda: Policy(violatoin="ask"), "did you mean violation=?"),
        (lambda: Retention(days=30), "Retention() has no argument 'days': write closed=timedelta(days=30)"),
        (lambda: ShortTermMemory(max_messages=9), "bounded by tokens: write max_tokens="),
        (lambda: SummarizingMemory(window=9), "bounded by tokens: write max_tokens="),
    ],
)
def test_service_arguments_of_other_frameworks_raise_a_hint(made, expected):
    """The error names the argument of this package."""
    with pytest.raises(TypeError) as caught:
        made()
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda agent: agent.run("x", timeout="5s"), "timeout= must be a number of seconds of at least 0"),
        (lambda agent: agent.run("x", timeout=timedelta(seconds=5)), "not datetime.timedelta"),
        (lambda agent: agent.run("x", session="s"), "write session=await agent.open_session(session_id)"),
        (lambda agent: agent.create_session("ada", history="hello"), "history= must be a list of messages"),
        (lambda agent: agent.create_session("ada", history=[{"role": "usr"}]), "history[0]"),
        (lambda agent: agent.create_session("ada", tags="x"), "tags= must be a list of"),
        (lambda agent: agent.create_session("ada", metadata={"n": 5}), "the invalid value '5' of n"),
    ],
)
async def test_agent_calls_with_a_wrong_value_raise_a_hint(call, expected):
    """Cases: times, sessions and their labels."""
    async with clerk() as agent:
        with pytest.raises(ConfigurationError) as caught:
            await call(agent)
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda session: session.chat("x", priority=5), "priority= takes URGENT, HIGH, NORMAL or LOW"),
        (lambda session: session.chat(""), "the message is empty"),
        (
            lambda session: session.schedule("x"),
            "exactly one of after= (seconds), at= (a datetime) and cron=",
        ),
        (
            lambda session: session.schedule("x", after=timedelta(hours=1)),
            "after= must be a number of seconds, not",
        ),
        (lambda session: session.schedule("x", at=datetime(2030, 1, 1)), "use an aware datetime"),  # noqa: DTZ001
        (lambda session: session.schedule("x", at=datetime(2020, 1, 1, tzinfo=UTC)), "is in the past"),
        (lambda session: session.schedule("x", cron="0 0 9 * * *"), "it needs five fields"),
        (lambda session: session.schedule("x", cron="0 9 * * *", zone="Oslo"), "'Europe/Berlin'"),
    ],
)
async def test_session_calls_with_a_wrong_value_raise_a_hint(call, expected):
    """Cases: messages and schedules."""
    async with clerk() as agent:
        session = await agent.create_session("ada")
        with pytest.raises(ConfigurationError) as caught:
            await call(session)
    assert expected in str(caught.value)


@pytest.mark.parametrize("limit", ["3", 0, 1.5, True])
@pytest.mark.parametrize("method", ["recall", "page"])
async def test_a_limit_of_memories_is_a_whole_number(method, limit):
    async with LongTermMemory("memory:") as memories:
        call = getattr(memories, method)
        with pytest.raises(ConfigurationError, match="limit= must be a whole number of at least 1, not"):
            await call(*(["tea"] if method == "recall" else []), owner="ada", limit=limit)


async def test_vectors_of_a_wrong_shape_are_logged(told):
    """A flat list of numbers is not one vector per text. The search compares words in this case."""
    async with LongTermMemory("memory:", embed=lambda _: [1, 2, 3]) as memories:
        await memories.remember("tea", owner="ada")
    assert "embed= must return one vector per text, a list of lists of numbers, not [1, 2, 3]" in told()[0]


# --- tools ---------------------------------------------------------------------------------------


def test_schema_without_a_required_parameter_is_rejected():
    """Each call would fail with a TypeError. Parameters with a default, and `additionalProperties`, are allowed."""
    other = {"type": "object", "properties": {"night": {"type": "string"}}}
    with pytest.raises(
        InvalidToolSchema, match="its function requires 'day', which parameters= does not have"
    ):
        tool(parameters=other)(look)
    assert isinstance(tool(parameters={**other, "additionalProperties": True})(look), Tool)
    assert isinstance(tool(parameters=other)(lambda_with_default), Tool)


def lambda_with_default(night: str, day: str = "Monday") -> str:
    """Look at night."""
    return night + day


def test_a_default_of_another_type_is_logged(told):
    """A call without the argument would pass a value that no model could pass."""

    @tool
    def count(to: int = "ten", step: float = 1, name: str | None = None) -> int:
        """Count."""
        return to

    (record,) = told()
    assert record == (
        "tool count: the default 'ten' of to is not of its type: correct the default or the annotation"
    )


async def test_session_of_another_agent_raises_a_hint():
    """The error names both agents, because the id of the session does exist."""
    async with open_runtime() as runtime:
        first = await runtime.start(clerk())
        other = await runtime.start(BareAgent("other", llm=ScriptedLLM(["No."])))
        session = await first.create_session("ada", session_id="s")
        with pytest.raises(SessionNotFound, match="session s belongs to agent 'clerk', not to agent 'other'"):
            await other.run("hi", session=session)


# --- journals and files --------------------------------------------------------------------------


async def test_database_of_another_program_is_rejected(tmp_path):
    """Cases: a journal at a database of a program, a journal at memories, and memories at a journal."""
    database = sqlite3.connect(tmp_path / "x.db")
    database.execute("CREATE TABLE t (a)")
    database.close()
    async with LongTermMemory(f"sqlite:///{tmp_path}/m.db") as memories:
        await memories.remember("tea", owner="ada")
    for _ in range(2):
        async with open_runtime(journal=f"sqlite:///{tmp_path}/j.db"):
            pass
    for name in ("x.db", "m.db"):
        with pytest.raises(ConfigurationError, match=f"^{name} is .*: use another file for the journal"):
            async with open_runtime(journal=f"sqlite:///{tmp_path}/{name}"):
                pass
    with pytest.raises(
        ConfigurationError, match=r"^j\.db is a journal, .*: use another file for the memories"
    ):
        async with LongTermMemory(f"sqlite:///{tmp_path}/j.db"):
            pass


async def test_durability_without_a_journal_is_rejected():
    """It would have no effect, so a crash would lose messages that the developer believes to be stored."""
    with pytest.raises(ConfigurationError, match="durability= requires a journal: pass journal="):
        async with open_runtime(durability="relaxed"):
            pass


async def test_a_key_without_an_id_is_not_quoted(monkeypatch, tmp_path):
    """The entry may be the key itself, so the error does not contain it."""
    monkeypatch.setenv("ACTGENT_JOURNAL_KEYS", "c2VjcmV0")
    with pytest.raises(ConfigurationError, match="entry 1 of ACTGENT_JOURNAL_KEYS has no key id") as caught:
        async with open_runtime(journal=f"sqlite:///{tmp_path}/k.db"):
            pass
    assert "c2VjcmV0" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "pipeline: p\nsteps:\n  a:\n    agnet: x\n",
            r"^p\.yaml: step 'a' has no 'agnet': did you mean 'agent'\?",
        ),
        (
            "pipeline: p\nsteps:\n - a\n",
            r"^p\.yaml: a pipeline file must have `pipeline:` with the name of the pipeline, and `steps:`",
        ),
    ],
)
def test_pipeline_file_with_a_wrong_key_is_rejected(text, expected, tmp_path):
    """The error names the file."""
    path = tmp_path / "p.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigurationError, match=expected):
        Pipeline.load(path)


# --- HTTP ----------------------------------------------------------------------------------------


async def test_requests_with_a_wrong_header_are_rejected():
    """Cases: no token, an unknown token, and a stream that selects only unknown events and would stay silent."""
    async with open_runtime(journal="memory:") as runtime:
        await runtime.start(clerk())
        async with open_gateway(runtime, bind="127.0.0.1:0") as gateway:
            async with connect(gateway.url, token="wrong") as client:
                with pytest.raises(
                    PermissionDenied, match="the token is unknown or expired: send a valid token"
                ):
                    await client.sessions()
            async with httpx2.AsyncClient(base_url=f"{gateway.url}/v1") as client:
                answer = await client.get("/sessions")
                assert "the request has no token" in answer.json()["detail"]
                client.headers["authorization"] = f"Bearer {gateway.key}"
                await client.put("/sessions/s1", json={"agent": "clerk"})
                answer = await client.get("/sessions/s1/events", headers={"actgent-events": "replies"})
                assert answer.status_code == 422
                assert (
                    "the header actgent-events must list at least one of the event names answer, approval, bye"
                    in answer.json()["detail"]
                )
