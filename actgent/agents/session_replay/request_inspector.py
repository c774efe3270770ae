"""Reconstruction of the model request that led to a recorded answer."""

import attrs

from actgent.agents.agent import Agent
from actgent.errors import ConfigurationError
from actgent.journal.record_types import AgentMessageRecord
from actgent.llm.context_window import estimate_request
from actgent.llm.model_interface import ModelRequest
from actgent.runtime.runtime import Runtime

from .session_replayer import Recording, recorded, replay_with, script_of


@attrs.frozen(kw_only=True)
class ShownRequest:
    """Model request that the agent's current code builds for a recorded answer."""

    chat: ModelRequest
    """Model request, rebuilt by the agent's current code."""
    step: int
    """Number of the journal record with the answer to the request, from 1."""
    record: AgentMessageRecord
    """Journal record of the model's answer to the request."""
    messages: int
    """Number of messages in the conversation when the request was sent."""
    memory: str
    """Description of the agent's memory, which selected the messages of the request."""
    is_same_prompt: bool
    """False if the system prompt or the tools have changed since the recording."""

    @property
    def estimate(self) -> int:
        """Estimated number of tokens of the request."""
        return int(estimate_request(self.chat))


async def show_request(recording: Recording, agent: Agent, step: int) -> ShownRequest:
    """Reconstruct the model request that led to a recorded answer, by replaying the session with the agent's current code.

    No model or tool is called. `step` is the number of the answer's record, from 1.

    Text that hooks and memories added to this request only, such as recalled memories, is not recorded and is missing.

    Raises:
        ConfigurationError: The record is not an answer of a model, or the replay does not reach it.
    """
    record = _answer_in(recording, step)
    up_to = attrs.evolve(recording, records=recording.records[:step])
    model = up_to.model()
    replayed, _ = await replay_with(up_to, agent, model, run_tools=False)
    chats = model.chats[len(script_of(up_to.records)) - 1 :]
    if not chats:
        raise ConfigurationError(
            f"the current code of agent {agent.name} makes no model call for record {step}: `actgent replay --code` shows the "
            "first difference"
        )
    prompts = [each.prompt for each in replayed if isinstance(each, AgentMessageRecord) and each.stop]
    answers = sum(isinstance(each, AgentMessageRecord) for each in up_to.records)
    return ShownRequest(
        chat=chats[0],
        step=step,
        record=record,
        messages=len(up_to.messages) + answers - 1,
        memory=repr(vars(agent)["_memory"]),
        is_same_prompt=bool(prompts) and prompts[-1] == record.prompt,
    )


async def show_next_request(
    runtime: Runtime, session_id: str, *, agent: str | None = None, at: int
) -> ShownRequest | None:
    """Reconstruct the model request of the first answer in record number `at` or later; None if no answer follows.

    The session belongs to a running agent. Only the code of the agent runs, in a copy. See `show_request`.

    Raises:
        ConfigurationError: The runtime has no journal, several agents have a session with this id, or the replay does not reach
            the record.
        NotRunning: The agent is not running here.
        SessionNotFound: The journal has no such session.
        JournalError: The journal cannot be read.
    """
    recording, found = await recorded(runtime, session_id, agent=agent)
    steps = enumerate(recording.records, 1)
    step = next(
        (n for n, each in steps if n >= at and isinstance(each, AgentMessageRecord) and each.stop), None
    )
    return None if step is None else await show_request(recording, found, step)


def _answer_in(recording: Recording, step: int) -> AgentMessageRecord:
    record = recording.records[step - 1] if 1 <= step <= len(recording.records) else None
    if isinstance(record, AgentMessageRecord) and record.stop:
        return record
    raise ConfigurationError(
        f"record {step} is not an answer of a model: `actgent inspect --context` lists the answers"
    )
