"""What a model was shown before it gave an answer that stands in a journal."""

import attrs

from actgent.agents.agent import Agent
from actgent.errors import ConfigurationError
from actgent.journal.records import Said
from actgent.llm.base import Chat
from actgent.llm.context_window import estimate
from actgent.runtime.runtime import Runtime

from .replaying import Recording, recorded, replay_with, script_of


@attrs.frozen(kw_only=True)
class ShownRequest:
    """A request as the agent's code of today makes it of the recorded session."""

    chat: Chat
    step: int
    """The number of the answer's record."""
    record: Said
    """The answer that came of it."""
    messages: int
    """How many the conversation had by then."""
    memory: str
    """What chose those that are shown."""
    is_same_prompt: bool
    """False: system prompt or tools are others today."""

    @property
    def estimate(self) -> int:
        """Tokens of the request by the rule of thumb, before anybody had counted."""
        return int(estimate(self.chat))


async def show_request(recording: Recording, agent: Agent, step: int) -> ShownRequest:
    """What the model was shown for the answer that stands in a record, from 1; nothing but the agent's code is run.

    What hooks and memories added to that call alone, such as what was recalled before it, is in no journal, and is not in it.

    Raises:
        ConfigurationError: there is no answer of a model in this record, or the agent's code does not come as far today.
    """
    record = _answer_in(recording, step)
    up_to = attrs.evolve(recording, records=recording.records[:step])
    model = up_to.model()
    replayed, _ = await replay_with(up_to, agent, model, run_tools=False)
    chats = model.chats[len(script_of(up_to.records)) - 1 :]
    if not chats:
        raise _not_reached(agent, step)
    prompts = [each.prompt for each in replayed if isinstance(each, Said) and each.stop]
    said = sum(isinstance(each, Said) for each in up_to.records)
    return ShownRequest(
        chat=chats[0],
        step=step,
        record=record,
        messages=len(up_to.messages) + said - 1,
        memory=repr(vars(agent)["_memory"]),
        is_same_prompt=bool(prompts) and prompts[-1] == record.prompt,
    )


async def show_next_request(
    runtime: Runtime, session_id: str, *, agent: str | None = None, at: int
) -> ShownRequest | None:
    """What the model was shown for the first answer that stands in the record `at` or behind it; None where none does yet.

    The session is one of an agent that runs, and only its code is run, in a copy beside it: see `show_request`.

    Raises:
        ConfigurationError: there is no journal, several agents have a session of this id, or the agent's code does not come
            as far today.
        NotRunning: its agent does not run here, so that nobody knows its code.
        SessionNotFound: the journal has no such session.
        JournalError: it cannot be read.
    """
    recording, found = await recorded(runtime, session_id, agent=agent)
    steps = enumerate(recording.records, 1)
    step = next((n for n, each in steps if n >= at and isinstance(each, Said) and each.stop), None)
    return None if step is None else await show_request(recording, found, step)


def _answer_in(recording: Recording, step: int) -> Said:
    record = recording.records[step - 1] if 1 <= step <= len(recording.records) else None
    if isinstance(record, Said) and record.stop:
        return record
    raise ConfigurationError(
        f"record {step} is no answer of a model: `actgent inspect --context` lists those that are"
    )


def _not_reached(agent: Agent, step: int) -> ConfigurationError:
    return ConfigurationError(
        f"with today's code of agent {agent.name} the model is not asked for record {step}: `actgent replay --agent` names the "
        "first difference"
    )
