"""OpenAI-compatible addresses: the SDK as the client, `llm-comply` as the judge, and the responses that the server stores."""

import re
import sys
from functools import partial

import openai
import pytest
import trio
from openai import OpenAI
from openai.types.responses import Response

HISTORY = [
    {"role": "system", "content": "Be short."},
    {"role": "user", "content": "I am Ada."},
    {"role": "assistant", "content": "Hello Ada."},
    {"role": "user", "content": "hello"},
]


async def sessions_of(served):
    async with served.client() as client:
        return (await client.get("/v1/sessions")).json()["items"]


async def test_models_are_the_agents(sdk):
    assert await sdk(lambda client: [each.id for each in client.models.list()]) == ["clerk", "gpt-5-clerk"]


async def test_chat_completion_without_session_leaves_no_open_session(served, sdk):
    made = await sdk(lambda client: client.chat.completions.create(model="clerk", messages=HISTORY))
    assert made.choices[0].message.content.startswith("you said: hello")
    assert made.choices[0].finish_reason == "stop"
    assert made.usage.total_tokens == 17
    assert all(each["status"] == "closed" for each in await sessions_of(served))


@pytest.mark.parametrize("base", ["", "/v1"])
async def test_wrong_base_url_is_explained(served, base):
    """OpenAI's SDK shows the error text, which names the right base URL."""

    def ask():
        url = f"{served.gateway.url}{base}"
        with OpenAI(base_url=url, api_key=served.tokens["ada"], max_retries=0) as client:
            client.responses.create(model="clerk", input="hello")

    with pytest.raises(openai.NotFoundError, match="ends with /openai/v1"):
        await trio.to_thread.run_sync(ask)


async def test_history_and_system_text_reach_the_model(sdk, chats):
    made = await sdk(lambda client: client.chat.completions.create(model="clerk", messages=HISTORY))
    assert made.choices[0].message.content == "you said: hello"
    (chat,) = chats
    assert chat.system.endswith("\n\nBe short.")
    texts = [(each.role, "".join(part.text for part in each.parts)) for each in chat.messages]
    assert texts == [("user", "I am Ada."), ("assistant", "Hello Ada."), ("user", "hello")]


async def test_temperature_and_token_limit_reach_the_model(sdk, chats):
    await sdk(
        lambda client: client.chat.completions.create(
            model="clerk", messages=HISTORY, temperature=0.5, max_completion_tokens=77
        )
    )
    (chat,) = chats
    assert (chat.temperature, chat.max_tokens) == (0.5, 77)


async def test_chat_completion_streams_text_and_usage(sdk):
    def stream(client):
        options = {"include_usage": True}
        chunks = client.chat.completions.create(
            model="clerk", messages=HISTORY[-1:], stream=True, stream_options=options
        )
        return list(chunks)

    chunks = await sdk(stream)
    assert (
        "".join(each.choices[0].delta.content or "" for each in chunks if each.choices) == "you said: hello"
    )
    assert [each.usage.total_tokens for each in chunks if each.usage] == [17]


async def test_session_header_continues_one_session(served, sdk):
    for number in range(2):
        await sdk(
            lambda client, number=number: client.chat.completions.create(
                model="clerk",
                messages=[{"role": "user", "content": f"message {number}"}],
                extra_headers={"x-session-id": "s1"},
            )
        )
    async with served.client() as client:
        reply = (await client.get("/v1/sessions/s1/messages?roles=user")).json()["items"]
    assert [each["parts"][0]["text"] for each in reply] == ["message 0", "message 1"]


async def test_idempotency_key_gives_one_turn(served, sdk):
    ask = partial(
        dict,
        model="clerk",
        messages=HISTORY[-1:],
        extra_headers={"x-session-id": "s1", "idempotency-key": "k1"},
    )
    first = await sdk(lambda client: client.chat.completions.create(**ask()))
    second = await sdk(lambda client: client.chat.completions.create(**ask()))
    assert first.id == second.id
    async with served.client() as client:
        assert len((await client.get("/v1/sessions/s1/messages?roles=user")).json()["items"]) == 1


@pytest.mark.parametrize("more", [{}, {"background": True}, {"stream": True}], ids=str)
async def test_idempotency_key_gives_one_response(served, more):
    """Equal requests of two clients at once are one turn in one session. The key is of one owner and one content."""
    body, headers = {"model": "clerk", "input": "hello", **more}, {"idempotency-key": "key 1/2"}
    answers = []

    async def ask(client, text="hello"):
        response = await client.post("/openai/v1/responses", json={**body, "input": text}, headers=headers)
        answers.append((response.status_code, re.findall(r"resp_[\w-]+", response.text)[:1]))

    async with served.client() as client, served.client("bob") as other:
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                for each in [client, client, other]:
                    nursery.start_soon(ask, each)
            await ask(client)
            await ask(client, "something else")
            listed = [len((await each.get("/v1/sessions")).json()["items"]) for each in (client, other)]
        response_ids = {each for _, (each,) in answers[:4]}
        session_id = answers[3][1][0].removeprefix("resp_").partition("_")[0]
        messages = (await client.get(f"/v1/sessions/{session_id}/messages?roles=user")).json()["items"]
    assert [status for status, _ in answers] == [200, 200, 200, 200, 422]
    assert (len(response_ids), listed, len(messages)) == (2, [1, 1], 1)


async def test_json_schema_is_the_output_schema(sdk):
    form = {
        "type": "json_schema",
        "json_schema": {"name": "x", "schema": {"type": "object", "required": ["a"]}},
    }

    def ask(client):
        return client.chat.completions.create(model="clerk", messages=HISTORY[-1:], response_format=form)

    with pytest.raises(openai.InternalServerError):  # the scripted model writes no JSON
        await sdk(ask)


async def test_response_continues_by_its_id_and_is_read_again(sdk):
    def talk(client):
        first = client.responses.create(model="clerk", input="hello")
        second = client.responses.create(model="clerk", input="again", previous_response_id=first.id)
        return first, second, client.responses.retrieve(second.id)

    first, second, read = await sdk(talk)
    assert (first.output_text, second.output_text) == ("you said: hello", "you said: again")
    assert read.output_text == second.output_text
    assert second.previous_response_id == first.id


async def test_response_stream_can_be_read_again_from_any_number(sdk):
    """The position may be within a text. The chunks that the client received before do not matter."""

    def talk(client):
        events = list(client.responses.create(model="clerk", input="hello", stream=True))
        numbers = [each.sequence_number for each in events]
        assert numbers == sorted(set(numbers))
        rests = []
        for number in range(numbers[-1]):
            rest = list(client.responses.retrieve(events[0].response.id, stream=True, starting_after=number))
            assert rest[-1].type == "response.completed"
            assert rest[0].sequence_number > number
            rests.append("".join(each.delta for each in rest if hasattr(each, "delta")))
        return rests

    text = "you said: hello"
    rests = await sdk(talk)
    assert all(text.endswith(each) for each in rests)
    assert {len(each) for each in rests} == set(range(len(text) + 1))
    assert [len(each) for each in rests] == sorted(map(len, rests), reverse=True)


async def test_background_response_ends_without_its_client(sdk):
    def talk(client):
        made = client.responses.create(model="clerk", input="hello", background=True)
        while (read := client.responses.retrieve(made.id)).status in ("queued", "in_progress"):
            pass
        return made, read

    made, read = await sdk(talk)
    assert made.status in ("queued", "in_progress")
    assert (read.status, read.output_text) == ("completed", "you said: hello")


async def test_approval_is_an_item_of_the_response(sdk):
    made = await sdk(lambda client: client.responses.create(model="clerk", input="please pay"))
    (item,) = made.output
    assert (item.type, item.name, item.arguments) == ("mcp_approval_request", "pay", '{"euros": 3}')


async def test_response_of_another_owner_is_not_found(sdk):
    made = await sdk(lambda client: client.responses.create(model="clerk", input="hello"))
    for call in (
        lambda client: client.responses.retrieve(made.id),
        lambda client: client.responses.create(model="clerk", input="x", previous_response_id=made.id),
        lambda client: client.responses.cancel(made.id),
    ):
        with pytest.raises(openai.NotFoundError):
            await sdk(call, token="bob")


async def test_failed_turn_is_a_failed_response_without_its_text(sdk):
    made = await sdk(lambda client: client.responses.create(model="clerk", input="please fail"))
    assert made.status == "failed"
    assert "secret-canary" not in made.to_json()
    assert isinstance(made, Response)


async def test_errors_have_the_classes_of_the_sdk(sdk):
    def create(client, **given):
        return client.chat.completions.create(**{"model": "clerk", "messages": HISTORY[-1:], **given})

    with pytest.raises(openai.NotFoundError) as missing:
        await sdk(lambda client: create(client, model="nobody"))
    assert missing.value.code == "model_not_found"
    for wrong in ({"n": 2}, {"stop": ["x"]}, {"messages": []}, {"temperature": 9.0}, {"max_tokens": 0}):
        with pytest.raises(openai.BadRequestError):
            await sdk(partial(create, **wrong))
    with pytest.raises(openai.PermissionDeniedError):
        await sdk(create, token="reader")


async def test_rejected_request_leaves_no_session(served, sdk):
    for wrong in ({"temperature": 9.0}, {"max_tokens": 0}, {"response_format": {"type": "x"}}):
        with pytest.raises(openai.BadRequestError):
            await sdk(
                partial(
                    lambda client, given: client.chat.completions.create(
                        model="clerk", messages=HISTORY[-1:], **given
                    ),
                    given=wrong,
                )
            )
    assert await sessions_of(served) == []


async def test_unknown_token_is_invalid_api_key(served):
    url = f"{served.gateway.url}/openai/v1"
    with (
        OpenAI(base_url=url, api_key="act_wrong", max_retries=0) as client,
        pytest.raises(openai.AuthenticationError) as refused,
    ):
        await trio.to_thread.run_sync(client.models.list)
    assert refused.value.code == "invalid_api_key"


@pytest.mark.parametrize(("form", "cases"), [("open-responses", 13), ("openai-chat", 9)])
async def test_llm_comply_passes(served, form, cases):
    """All cases of the suite pass, and none is skipped."""
    pytest.importorskip("llm_comply", reason="llm-comply is not installed")
    command = [
        sys.executable, "-m", "llm_comply.cli", "--format", form, "-u", f"{served.gateway.url}/openai/v1",
        "-k", served.tokens["ada"], "-m", "gpt-5-clerk",
    ]  # fmt: skip
    done = await trio.run_process(command, capture_stdout=True, capture_stderr=True, check=False)
    output = done.stdout.decode() + done.stderr.decode()
    assert f"All {cases} tests passed!" in output, output
