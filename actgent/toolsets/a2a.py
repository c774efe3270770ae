"""Remote agents with A2A 1.0 over JSON-RPC, as tools and as models. Source: A2A specification 1.0, section 9."""

import base64
import binascii
import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar
from urllib.parse import urlsplit

import attrs
import orjson
import trio

from actgent.approvals import ApprovalRequest, FormAnswer
from actgent.errors import ApprovalRequired, ConfigurationError, ModelError, ToolError
from actgent.errors.text_escaping import shown
from actgent.llm.model_interface import LLM, ModelRequest, ModelResponse, OnText
from actgent.messages import Medium, Part, Text, ToolCall, ToolResult, new_id, traceparent, valid_traceparent
from actgent.tools.outputs.result_media import make_medium
from actgent.tools.tool_interface import ApprovalRule, Effect, Tool, ToolContext

from .http.api_credentials import Auth, check_auth, get_credentials
from .http.bounded_http_requests import APIRequest, Connections, is_http_url, origin_of
from .http.internal_address_blocking import Guard

CARD_PATH = "/.well-known/agent-card.json"
FIRST_POLL_SECONDS = 0.1
MAX_POLL_SECONDS = 5.0
CANCEL_SECONDS = 2.0
"""Maximum seconds of the request that cancels the task of a cancelled call."""
_OPEN = ("TASK_STATE_SUBMITTED", "TASK_STATE_WORKING")
_MAX_QUESTION_CHARACTERS = 2000
_PARAMETERS = {
    "type": "object",
    "properties": {
        "message": {"type": "string", "minLength": 1, "description": "Message to the agent"},
        "context_id": {
            "type": "string",
            "description": "Conversation that continues, from an earlier result",
        },
    },
    "required": ["message"],
    "additionalProperties": False,
}
_ANSWER_FORM = {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]}


@attrs.frozen
class _Question:
    """Remote task that waits for input. It is stored with the approval, so that the answer reaches this task."""

    task_id: str
    context_id: str


class A2AAgent(Tool):
    """An agent of another product as a tool. The model sends the remote agent a message, and gets its answer.

        Agent(tools=[A2AAgent("translator", "https://agents.example.com/a2a/translator", auth=Bearer(token))])

    The agent's card is read before the first call. Answers are untrusted text. A question of the agent becomes an approval
    of the session, and the answer is sent to the same task.

    Args:
        name: Name by which the model calls the tool.
        url: URL below which the card is at `/.well-known/agent-card.json`, or the URL of the card, which ends with `.json`.
        description: Text for the model: when to call the tool.
        auth: `Bearer(token)`, `Basic(user, password)`, `APIKey(key)`, or a function that returns `Credentials`.
        timeout: Time limit of a call in seconds. The task of a cancelled call is cancelled, if the agent has returned it.
        effect: `once`, or `idempotent` if the agent recognizes repeated message ids, as actgent does. After a crash, an
            idempotent call continues with its task; therefore its task is not cancelled with the call.
        approval: True if each call needs an approval.
        max_bytes: Maximum size of a response in bytes.
        allow: Hosts and networks that are reachable although they are not public: `["127.0.0.1", "10.0.0.0/8"]`.

    Raises:
        ConfigurationError: An argument is invalid; the text names it.
    """

    parameters = _PARAMETERS
    outside = True

    def __init__(
        self,
        name: str,
        url: str,
        *,
        description: str = "",
        auth: Auth | None = None,
        timeout: float = 600.0,
        effect: Effect = "once",
        approval: bool | ApprovalRequest | ApprovalRule = False,
        max_bytes: int = 1_000_000,
        allow: Sequence[str] = (),
    ) -> None:
        if not is_http_url(url) or "@" in urlsplit(url).netloc:
            raise ConfigurationError(
                f"url= must be an http or https URL without a password, not {url!r:.200}"
            )
        check_auth(auth)
        super().__init__(name, description or f"Sends a message to the agent {name}, and returns its answer.")
        self.url = url.rstrip("/")
        self.timeout, self.effect, self.approval = timeout, effect, approval
        self.max_bytes = max_bytes
        self._auth = auth
        self._connections = Connections(Guard(allow))
        self._endpoint = ""
        """URL of the JSON-RPC interface; empty before the card was read."""

    def __repr__(self) -> str:
        return f"<A2AAgent {self.name!r}: {self.url}>"

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> object:
        async with self._connections.keep_open():
            result = await self._call("SendMessage", _request(arguments, context))
            task = result.get("task")
            if not isinstance(task, dict):
                return _content(_object(result, "message"), "")
            try:
                task = await self._wait(task)
            except trio.Cancelled:
                if self.effect != "idempotent":
                    with trio.move_on_after(CANCEL_SECONDS, shield=True):
                        await self._try_cancel(task)
                raise
        return _outcome(task)

    async def _wait(self, task: Mapping[str, Any]) -> Mapping[str, Any]:
        """Poll a task of the remote agent, with growing pauses, until it has ended or waits for input."""
        delay = FIRST_POLL_SECONDS
        while _state(task) in _OPEN:
            await trio.sleep(delay)
            delay = min(2 * delay, MAX_POLL_SECONDS)
            task = await self._call("GetTask", {"id": task.get("id")})
        return task

    async def _try_cancel(self, task: Mapping[str, Any]) -> None:
        try:
            await self._call("CancelTask", {"id": task.get("id")})
        except ToolError:  # it has ended, or the agent is not reachable: the call is cancelled anyway
            return

    async def _call(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Call a JSON-RPC method of the remote agent, and return the result member of the response.

        Raises:
            ToolError: The agent is not reachable, or refused the request.
        """
        url = self._endpoint or await self._find_endpoint()
        body = {"jsonrpc": "2.0", "id": new_id(), "method": method, "params": params}
        answer = await self._send("POST", url, orjson.dumps(body))
        if isinstance(error := answer.get("error"), dict):
            raise ToolError(f"the remote agent refused the request: {shown(str(error.get('message')), 1000)}")
        return _object(answer, "result")

    async def _find_endpoint(self) -> str:
        """Read the card of the agent, and return the URL of its JSON-RPC interface.

        Raises:
            ToolError: The card has no such interface, or one at another origin, which must not get the credentials.
        """
        card = await self._send("GET", self.url if self.url.endswith(".json") else f"{self.url}{CARD_PATH}")
        for each in _list(card.get("supportedInterfaces")):
            known = each if isinstance(each, dict) else {}
            version, url = str(known.get("protocolVersion")), known.get("url")
            if known.get("protocolBinding") == "JSONRPC" and version.partition(".")[0] == "1":
                if not isinstance(url, str) or not is_http_url(url) or origin_of(url) != origin_of(self.url):
                    raise ToolError(
                        f"the agent's card names an interface at another origin, which must not get the credentials: {shown(str(url), 200)}"
                    )
                self._endpoint = url
                return url
        raise ToolError("the agent's card must name a JSON-RPC interface of A2A 1.0")

    async def _send(self, method: str, url: str, content: bytes | None = None) -> Mapping[str, Any]:
        headers = {"Accept": "application/json", "Content-Type": "application/json", "A2A-Version": "1.0"}
        if (trace := valid_traceparent(traceparent.get())) is not None:
            headers["traceparent"] = trace
        request = APIRequest(
            method=method,
            url=url,
            headers=headers,
            content=content,
            credentials=await get_credentials(self._auth),
            max_bytes=self.max_bytes,
        )
        response = await self._connections.send(request)
        try:
            found = None if response.is_truncated else orjson.loads(response.body)
        except orjson.JSONDecodeError:
            found = None
        if not isinstance(found, dict):
            raise ToolError(
                f"the remote agent's answer must be a JSON object of at most {self.max_bytes} bytes"
            )
        return found


def _request(arguments: Mapping[str, Any], context: ToolContext) -> dict[str, Any]:
    """Return the parameters of the `SendMessage` request: the model's message, or an approver's answer for a waiting task.

    The message id is derived from the call, so that the remote agent recognizes a repeated call.
    """
    key, known, text = context.idempotency_key or new_id(), dict[str, Any](), arguments["message"]
    answer = context.approval
    if isinstance(answer, FormAnswer) and answer.state:
        question = _Question(**orjson.loads(answer.state))
        known = {"taskId": question.task_id, "contextId": question.context_id}
        key, text = f"{key}\n{answer.question}", str((answer.content or {}).get("answer", ""))
    elif arguments.get("context_id"):
        known = {"contextId": arguments["context_id"]}
    message_id = hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    message = {"messageId": message_id, "role": "ROLE_USER", "parts": [{"text": text}], **known}
    return {"message": message, "configuration": {"returnImmediately": True}}


def _object(value: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = value.get(name)
    if not isinstance(found, dict):
        raise ToolError(f"the remote agent's answer lacks the object {name!r}")
    return found


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _state(task: Mapping[str, Any]) -> str:
    return str(_object(task, "status").get("state"))


def _outcome(task: Mapping[str, Any]) -> object:
    """Convert the final state of a remote task to a tool result.

    Raises:
        ApprovalRequired: The task waits for input.
        ToolError: The task failed, was rejected or canceled, or is invalid.
    """
    state, note = _state(task), _object(task, "status").get("message")
    words = _texts(note) if isinstance(note, dict) else ""
    context_id = str(task.get("contextId") or "")
    if state == "TASK_STATE_INPUT_REQUIRED":
        asked = _Question(str(task.get("id")), context_id)
        question = shown(words, _MAX_QUESTION_CHARACTERS) or "the agent needs more input"
        raise ApprovalRequired(
            question, form=_ANSWER_FORM, again=True, state=orjson.dumps(attrs.asdict(asked)).decode()
        )
    if state != "TASK_STATE_COMPLETED":
        name = state.removeprefix("TASK_STATE_").lower().replace("_", " ")
        raise ToolError(f"the agent's task is {shown(name, 50)}: {shown(words, 1000)}".rstrip(": "))
    parts = [
        part
        for artifact in _list(task.get("artifacts"))
        if isinstance(artifact, dict)
        for part in _list(artifact.get("parts"))
    ]
    return _content({"parts": parts} if parts else (note or {}), context_id)


def _texts(message: Mapping[str, Any]) -> str:
    parts = message.get("parts")
    texts = [
        part.get("text") for part in (parts if isinstance(parts, list) else []) if isinstance(part, dict)
    ]
    return "\n".join(text for text in texts if isinstance(text, str))


def _content(message: Mapping[str, Any], context_id: str) -> object:
    """Convert a message of the remote agent to a tool result.

    `context_id` is the id of the conversation; if it is not empty, it is appended, so that the model can continue the conversation.
    """
    found = [_from_part(part) for part in _list(message.get("parts")) if isinstance(part, dict)]
    if context_id:
        found.append(f"(context_id: {context_id})")
    if all(isinstance(each, str) for each in found):
        return "\n".join(str(each) for each in found) or "(empty answer)"
    return found


def _from_part(part: Mapping[str, Any]) -> str | Medium:
    if isinstance(part.get("text"), str):
        return str(part["text"])
    if "data" in part:
        return orjson.dumps(part["data"]).decode()
    name = str(part.get("filename") or "file")
    if isinstance(part.get("raw"), str):
        try:
            data = base64.b64decode(part["raw"], validate=True)
        except (binascii.Error, ValueError):
            return f"(the file {name} is not base64)"
        return make_medium(data, str(part.get("mediaType") or ""), name=name)
    return f"(file {name}: {part.get('url')})"


_CONTEXT = re.compile(r"\n?\(context_id: ([^()\s]+)\)\Z")


class A2AModel(LLM):
    """A model that forwards each message to a remote agent with A2A, and answers with the remote agent's answer.

        translator = A2AAgent("translator", "https://agents.example.com/a2a/translator", auth=Bearer(token))
        await runtime.start(BareAgent("translator", llm=A2AModel(translator), tools=[translator]))

    Use it like an agent of the program: in `session.delegate`, as a tool of other agents, in pipelines and
    teams. Its session is one conversation with the remote agent. Questions of the remote agent are approvals of the session, and
    a task without an answer is a failure of the turn.

    Args:
        agent: The remote agent. It is the only tool of the agent that has this model.

    Raises:
        ConfigurationError: `agent` is not an `A2AAgent`.
    """

    dialect: ClassVar[str] = "a2a"

    def __init__(self, agent: A2AAgent) -> None:
        if not isinstance(agent, A2AAgent):
            raise ConfigurationError(f"the argument of A2AModel must be an A2AAgent, not {agent!r:.200}")
        self.agent = agent
        self.name = f"a2a:{agent.name}"

    def __repr__(self) -> str:
        return f"A2AModel({self.agent!r})"

    async def complete(self, chat: ModelRequest, *, on_text: OnText | None = None) -> ModelResponse:
        """Act as a model for an agent that represents a remote A2A agent.

        If the last message is from the user, return a tool call that sends its text to the remote agent. If the last message
        is the result of that call, return the result as the answer. `on_text` is not used.

        Raises:
            ModelError: The call to the remote agent failed, or the agent that uses this model lacks the tool for it.
        """
        await trio.lowlevel.checkpoint()
        if all(each.name != self.agent.name for each in chat.tools):
            raise ModelError(
                f"an agent with this A2AModel must also have its remote agent as a tool: tools=[{self.agent.name}]"
            )
        parts = chat.messages[-1].parts if chat.messages else ()
        results = [part for part in parts if isinstance(part, ToolResult)]
        if not results:
            return ModelResponse(parts=(self._call(chat, parts),), stop="tool_calls")
        result = results[-1]
        if result.error is not None:
            raise ModelError(f"{self.agent.name}: {result.error}")
        text = _CONTEXT.sub("", result.content)
        if on_text is not None and text:
            await on_text(text, 0)
        return ModelResponse(parts=(*([Text(text)] if text else []), *result.media))

    def _call(self, chat: ModelRequest, parts: Sequence[Part]) -> ToolCall:
        """Return the tool call that sends the texts of a message to the remote agent.

        If the chat contains an earlier result, the call continues its conversation. Attached files are not sent, only their number.
        """
        arguments = {"message": "\n".join(part.text for part in parts if isinstance(part, Text))}
        if left_out := sum(isinstance(part, Medium) for part in parts):
            arguments["message"] += f"\n({left_out} attached files are not forwarded)"
        for message in reversed(chat.messages):
            for part in message.parts:
                if isinstance(part, ToolResult) and (found := _CONTEXT.search(part.content)):
                    return ToolCall(self.agent.name, {**arguments, "context_id": found[1]})
        return ToolCall(self.agent.name, arguments)
