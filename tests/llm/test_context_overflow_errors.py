"""Provider-specific errors: requests that are too long, rate-limit waits, calls that a provider cannot parse."""

import pytest

from actgent import BareAgent, tool
from actgent.errors import BadRequest, ModelError, ProviderUnavailable, QuotaExhausted, RateLimited
from actgent.llm.context_overflow_errors import is_too_long
from actgent.llm.model_interface import ChatMessage, ModelRequest, ResponseFormat
from actgent.messages import Text

HELLO = ModelRequest(messages=(ChatMessage("user", (Text("Hello."),)),))
URL = "http://localhost:1/v1"

TOO_LONG = [
    (400, "Your input exceeds the context window of this model. Please adjust your input and try again."),
    (400, "This model's maximum context length is 128000 tokens. However, your messages resulted in 137812 tokens."),
    (400, "prompt is too long: 213462 tokens > 200000 maximum"),
    (400, "input length and `max_tokens` exceed context limit: 188240 + 21333 > 200000, decrease input length or `max_tokens` and try again"),
    (400, "Input is too long for requested model."),
    (400, "Input Tokens Exceeded: Number of input tokens exceeds maximum length. Please update the input to try again."),
    (400, "The input token count (1196265) exceeds the maximum number of tokens allowed (1048575)."),
    (400, "Unable to submit request because the input token count is 45000 but model only supports up to 32768. Reduce the input token count and try again."),
    (400, "the request exceeds the available context size. try increasing the context size or enable context shift"),
    (500, "the request exceeds the available context size, try increasing it"),
    (400, "request (14429 tokens) exceeds the available context size (8192 tokens), try increasing it"),
    (400, "Please reduce the length of the messages or completion."),
    (429, "Request too large for gpt-4o in organization org-x on tokens per min (TPM): Limit 30000, Requested 45000. The input or output tokens must be reduced in order to run successfully."),
    (413, "Request too large for model `m` on tokens per minute (TPM): Limit 6000, Requested 9000, please reduce your message size and try again."),
    (413, "Payload Too Large"),
    (400, "This model's maximum prompt length is 131072 but the request contains 537812 tokens."),
    (422, "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 4000 `inputs` tokens and 512 `max_new_tokens`"),
    (422, "Input validation error: `inputs` must have less than 1024 tokens. Given: 1234"),
    (400, "The decoder prompt (length 5000) is longer than the maximum model length of 4096."),
    (400, "The input (140000 tokens) is longer than the model's context length (131072 tokens)."),
    (400, "prompt token count of 140000 exceeds the limit of 128000"),
    (400, "This endpoint's maximum context length is 131072 tokens. However, you requested about 150000 tokens."),
    (400, "Prompt contains 140000 tokens, too large for model with 131072 maximum context length"),
    (400, "invalid params, context window exceeds limit (2013)"),
    (400, "Invalid request: Your request exceeded model token limit: 262144"),
    (400, "The number of tokens to keep from the initial prompt is greater than the context length."),
    (400, "prompt too long; exceeded max context length by 12 tokens"),
    (400, "the input length exceeds the context length"),
    (400, "the number of input tokens 5000 cannot exceed the total tokens limit 4096 for this model"),
    (400, "too many tokens: total number of tokens in the prompt cannot exceed 4081"),
    (400, "Range of input length should be [1, 129024]"),
    (400, "Prompt length 5000 is greater than max_seq_len 4096"),
    (400, "Prompt length (5000) exceeds maximum input length (4096)."),
    (400, "Number of prompt tokens: 5000 exceeds model max length: 4096"),
    (400, "max tokens of 8192 exceeded"),
    (400, "Prompt 超长"),
    (400, "prompt tokens too long"),
    (400, "the max input characters is 20000"),
    (400, "Request body too large for gpt-4o model. Max size: 8000 tokens."),
    (400, "Validation error: Prompt has too many tokens"),
    (400, "The message you submitted was too long, please submit something shorter."),
    (400, "The total length of input and max_tokens 9000 exceeds the limit 8192"),
    (400, "Prompt exceeds max length"),
    (400, "Input exceeds the maximum number of tokens"),
    (400, "messages too long"),
    (400, "Prompt contains 40000 tokens, too large for model"),
    (400, "Your request exceeds the maximum input length of 4096 tokens"),
    (400, "Too many tokens in prompt: 9000"),
    (400, "prompt token limit exceeded"),
]  # fmt: skip
OTHER = [
    (429, "Too many tokens, please wait before trying again.", RateLimited),
    (429, "Rate limit reached for gpt-4o on tokens per min (TPM): Limit 30000, Used 29000, Requested 2000. Please try again in 2s.", RateLimited),
    (429, "You exceeded your current quota. Quota exceeded for metric: generate_content_free_tier_input_token_count, limit: 250000", RateLimited),
    (400, "max_tokens is too large: 100000. This model supports at most 16384 completion tokens.", BadRequest),
    (400, "The maximum tokens you requested exceeds the model limit of 4096.", BadRequest),
    (503, "The model is overloaded. Please try again later.", ProviderUnavailable),
    (400, "image exceeds 5 MB maximum: 6000000 bytes > 5242880 bytes", BadRequest),
    (400, "max_tokens: 100000 > 64000, which is the maximum allowed number of output tokens", BadRequest),
    (400, "Invalid 'tools': array too long. Expected an array with maximum length 128.", BadRequest),
    (400, "The tool name is too long", BadRequest),
    (400, "Your request took too long to process", BadRequest),
    (429, "Number of request tokens has exceeded your per-minute rate limit", RateLimited),
    (429, "This request would exceed the rate limit of 30,000 input tokens per minute", RateLimited),
]  # fmt: skip


async def failure(connect, dialect, status, error, **options):
    body = {"error": error} if dialect == "openai" else {"type": "error", "error": error}
    model, _ = connect(dialect, {"status_code": status, "json": body}, base_url=URL, **options)
    with pytest.raises(ModelError) as caught:
        await model.complete(HELLO)
    return caught.value


@pytest.mark.parametrize("kind", ["rate_limit_exceeded", "invalid_request_error", "server_error"])
@pytest.mark.parametrize(("status", "text"), TOO_LONG)
async def test_overflow_is_recognized_by_its_wording(connect, dialect, status, text, kind):
    """The wording identifies the overflow, with any status and code. It is not retried."""
    error = await failure(connect, dialect, status, {"message": text, "type": "tokens", "code": kind})
    assert is_too_long(error)
    assert not error.retryable


@pytest.mark.parametrize("code", ["context_length_exceeded", "exceed_context_size_error"])
@pytest.mark.parametrize("status", [200, 400, 500])
async def test_overflow_is_recognized_by_its_code(connect, dialect, code, status):
    """Overflow codes are recognized, also with llama.cpp's status 500 and in an error body of status 200."""
    error = await failure(connect, dialect, status, {"message": "No.", "type": code, "code": status})
    assert is_too_long(error)


@pytest.mark.parametrize(("status", "text", "kind"), OTHER)
async def test_other_limits_are_no_overflow(connect, dialect, status, text, kind):
    """Rate limits and limits of the answer are not overflow errors."""
    error = await failure(connect, dialect, status, {"message": text})
    assert type(error) is kind
    assert not is_too_long(error)


def retry_info(delay):
    return {"details": [{"@type": "type.googleapis.com/google.rpc.Help"}, {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": delay}]}  # fmt: skip


@pytest.mark.parametrize(
    ("error", "seconds"),
    [
        (retry_info("1.5s"), 1.5),
        (retry_info("34.074824224s"), 34.074824224),
        (retry_info({"seconds": 7}), 7),
        ({"message": "Please retry in 14.5s."}, 14.5),
        ({"message": "Please try again in 7.66s. Visit ..."}, 7.66),
        ({"message": "Please try again in 2m59.56s."}, 179.56),
        ({"message": "Please try again in 250ms."}, 0.25),
        ({"message": "Please try again in 1h2m3s."}, 3723),
        ({"message": "Please retry after 6 seconds."}, 6),
        ({"message": "Try again in 2 minutes"}, 120),
        ({"metadata": {"headers": {"Retry-After": "9"}}}, 9),
        ({"message": "Try again later."}, None),
        ({"details": "none"}, None),
        ({"details": [None, {"retryDelay": "soon"}], "metadata": []}, None),
    ],
)
async def test_wait_in_the_body_of_a_rate_limit_is_read(connect, error, seconds):
    """Without Retry-After, the wait is read from Gemini's RetryInfo or from the error text."""
    found = await failure(connect, "openai", 429, {"message": "No.", "code": 429, **error})
    assert isinstance(found, RateLimited)
    assert found.retry_after == (None if seconds is None else pytest.approx(seconds))


async def test_retry_after_header_precedes_the_body(connect):
    """The standard header takes precedence over the body."""
    reply = {"status_code": 429, "json": {"error": retry_info("9s")}, "headers": {"retry-after": "2"}}
    model, _ = connect("openai", reply, base_url=URL)
    with pytest.raises(RateLimited) as caught:
        await model.complete(HELLO)
    assert caught.value.retry_after == 2


async def test_no_credit_is_no_rate_limit(connect):
    """A 429 for missing credit is not a rate limit."""
    error = await failure(connect, "openai", 429, {"message": "No credit.", "code": "insufficient_quota"})
    assert type(error) is QuotaExhausted


# --- what the model wrote and its provider cannot read -------------------------------------------------


def slip(code, text, *, status=400):
    error = {"message": "Failed.", "type": "invalid_request_error", "code": code, "failed_generation": text}
    return {"status_code": status, "json": {"error": error}}


@pytest.mark.parametrize(
    "text",
    [
        '<function=add{"a": 1, "b": 2}</function>',
        '<function=add>{"a": 1, "b": 2}</function>',
        '<function(add){"a": 1}</function>',
        '{"name": "add", "arguments": {"a": "1", "b": 2}',
        '[add(a=1, b="2")]',
    ],
)
@pytest.mark.parametrize("streams", [False, True])
async def test_unreadable_call_of_groq_is_returned_to_the_model(connect, sse, text, streams):
    """The call never runs. The model gets an error result and is called again."""
    ran = []

    @tool
    async def add(a: int = 0, b: int = 0) -> int:
        ran.append((a, b))
        return a + b

    failed, said = (
        slip("tool_use_failed", text),
        {"choices": [{"delta": {"content": "3"}, "finish_reason": "stop"}]},
    )
    if streams:
        failed = sse(failed["json"])
    model, wire = connect("openai", failed, sse(said), stream=True, base_url=URL)
    async with BareAgent("clerk", llm=model, tools=[add]) as clerk:
        assert (await clerk.run("1 + 2?")).text == "3"
    assert not ran
    call, result = wire.bodies[1]["messages"][-2:]
    assert call["tool_calls"][0]["function"]["name"] == "add"
    assert result["role"] == "tool"
    assert "Error" in result["content"]


async def test_unreadable_output_of_groq_is_retried(connect):
    """The rejected text is returned as the answer, so that output validation can correct it."""
    model, _ = connect("openai", slip("json_validate_failed", '{"a": '), base_url=URL)
    form = ResponseFormat("f", {"type": "object"})
    answer = await model.complete(ModelRequest(messages=HELLO.messages, response_format=form))
    assert (answer.text, answer.tool_calls) == ('{"a": ', ())


async def test_failed_call_without_text_is_a_bad_request(connect):
    """Without the text of the call, the error is a BadRequest."""
    model, _ = connect("openai", slip("tool_use_failed", ""), base_url=URL)
    with pytest.raises(BadRequest):
        await model.complete(HELLO)
