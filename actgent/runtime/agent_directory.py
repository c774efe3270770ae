"""Directory of the running agents of a runtime: lookup by name and search by capability."""

import re
import typing
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import asynccontextmanager
from weakref import WeakValueDictionary

import attrs

from actgent.actors.inbox import InboxBounds
from actgent.errors import NotRunning, SessionExists
from actgent.journal.session_list_queries import SessionKey
from actgent.llm.model_interface import LLM
from actgent.memory.memory_interface import LongTermMemoryBase
from actgent.protocols.protocol_interface import Profile
from actgent.sessions.session_context import SessionContext
from actgent.support.attrs_class_repr import FieldRepr

from .resumption_during_startup import StartPhase
from .sessions.session_loading import PendingOpens
from .sessions.session_opener import SessionOpener
from .sessions.session_table import SessionTrees
from .waits_between_sessions import releasing_slot

_WORD = re.compile(r"\w+")
_STEM = 4
"""Minimum number of letters of a word that matches longer words which begin with it: `translate` matches `translates`."""


@attrs.frozen(kw_only=True, repr=False)
class AgentCard(FieldRepr):
    """Description of an agent for other agents."""

    name: str
    """Name of the agent, unique in the runtime."""
    role: str = ""
    """Role of the agent, from its profile."""
    goal: str = ""
    """Goal of the agent, from its profile."""
    capabilities: str = ""
    """Abilities of the agent, from its profile; `find_agents` searches them."""
    models: Mapping[str, str] = attrs.field(factory=dict, hash=False)
    """Names of the agent's models (`provider:model`) by role; `default` is the model of `llm=`."""

    def count_matches(self, words: frozenset[str]) -> int:
        """Return how many of `words` match a word in the card's name, role, goal or capabilities."""
        known = split_words(f"{self.name} {self.role} {self.goal} {self.capabilities}")
        return sum(any(_has_same_stem(word, other) for other in known) for word in words)


def split_words(text: str) -> frozenset[str]:
    """Return the words of a text in lower case. Hyphens and underscores separate words."""
    return frozenset(_WORD.findall(text.casefold().replace("_", " ")))


def _has_same_stem(word: str, other: str) -> bool:
    """Return True if two words are equal, or if one has at least `_STEM` letters and the other begins with it."""
    shorter, longer = sorted((word, other), key=len)
    return word == other or (len(shorter) >= _STEM and longer.startswith(shorter))


class StartedAgent(typing.Protocol):
    """Interface of the started agents in the directory."""

    name: str
    profile: Profile

    @property
    def model_clients(self) -> Mapping[str, LLM]:
        """Model clients by role."""

    @property
    def inbox_bounds(self) -> InboxBounds:
        """Bounds of the inbox."""

    @property
    def long_term_memory(self) -> LongTermMemoryBase | None:
        """Long-term memory of the agent; None if it has none."""

    def __actgent_use__(self) -> SessionOpener:
        """Return the session opener of the running agent. The first call builds the agent's actor."""


class Directory(Mapping[str, AgentCard]):
    """Running agents of one runtime: a mapping of names to agent cards."""

    def __init__(self) -> None:
        self.start_phase = StartPhase()
        self.trees = SessionTrees()
        self._openers: dict[str, SessionOpener] = {}
        """Session openers of the agents that were used since their start, by name."""
        self._resumed = 0
        """Number of sessions that were resumed by agents which have stopped since."""
        self._agents: dict[str, StartedAgent] = {}
        """All running agents by name."""
        self._openings: WeakValueDictionary[str, PendingOpens] = WeakValueDictionary()
        """Sessions that are being opened, by agent. An entry exists as long as its agent or a waiting task refers to
        it.
        """

    def __getitem__(self, name: str) -> AgentCard:
        agent = self._agents[name]
        profile = agent.profile
        models = {role: llm.name or type(llm).__name__ for role, llm in agent.model_clients.items()}
        return AgentCard(
            name=name, role=profile.role, goal=profile.goal, capabilities=profile.capabilities, models=models
        )

    def __contains__(self, name: object) -> bool:
        return name in self._agents

    def __iter__(self) -> Iterator[str]:
        return iter(self._agents)

    def __len__(self) -> int:
        return len(self._agents)

    def find(self, capability: str = "") -> tuple[AgentCard, ...]:
        """Return the agents whose card contains words of `capability`, best match first.

        For an empty text, return all agents by name.
        """
        wanted = split_words(capability)
        if not wanted:
            return tuple(self[name] for name in sorted(self))
        found = [(-card.count_matches(wanted), name) for name, card in self.items()]
        return tuple(self[name] for matches, name in sorted(found) if matches)

    # --- for the agents themselves -----------------------------------------------------------

    def add(self, agent: StartedAgent) -> None:
        """Add an agent that has started, so that programs and other agents find it by name."""
        self._agents[agent.name] = agent

    def add_opener(self, name: str, opener: SessionOpener) -> None:
        """Add the session opener of an agent when its actor is built. After that, `unused` omits the agent."""
        self._openers[name] = opener
        self.trees.add(opener.running.sessions)

    def remove(self, name: str) -> None:
        """Remove an agent that has stopped."""
        if (opener := self._openers.pop(name, None)) is not None:
            self._resumed += opener.running.lifecycle.resumed
        self._agents.pop(name, None)
        self.trees.remove(name)

    def pending_opens_of(self, name: str) -> PendingOpens:
        """Return the table of sessions of the agent `name` that are being created, loaded or erased, also if it is not running."""
        found = self._openings.get(name)
        if found is None:
            found = self._openings[name] = PendingOpens()
        return found

    def agent(self, name: str) -> StartedAgent | None:
        """Return the agent object with this name; None if it is not running here."""
        return self._agents.get(name)

    @property
    def unused(self) -> Iterator[StartedAgent]:
        """Running agents whose actor was not built, because no session or message has used them since their start."""
        return (agent for name, agent in self._agents.items() if name not in self._openers)

    @property
    def models(self) -> Iterator[LLM]:
        """Model clients of all running agents, sorted by the names of the agents."""
        return (llm for name in sorted(self._agents) for llm in self._agents[name].model_clients.values())

    def opener(self, name: str) -> SessionOpener:
        """Return the session opener of an agent. The first call builds the agent's actor.

        Raises:
            NotRunning: The agent is not running here.
        """
        if name in self._openers:
            return self._openers[name]
        if name not in self._agents:
            raise NotRunning(name, self._agents)
        return self._agents[name].__actgent_use__()

    async def wait_restarted(self, stopped: SessionOpener) -> SessionOpener:
        """Wait until an agent that has stopped was started again, and return its new session opener.

        The calling turn releases its concurrency slot while it waits.

        Args:
            stopped: The session opener of the agent before its stop.
        """
        name = stopped.running.name
        with releasing_slot():
            while name not in self._agents or self._openers.get(name) is stopped:
                await self.start_phase.wait_next_start()
        return self.opener(name)

    @asynccontextmanager
    async def creating_session(self, name: str, session_id: str) -> AsyncGenerator[None, None]:
        """Return a block in which a session is created. Other tasks that create or open this session wait for its end.

        The block begins after tasks that already open or erase the session have finished.

        Raises:
            SessionExists: The session is in memory, or another task is opening it and this task cannot wait.
        """
        opener, openings = self._openers.get(name), self.pending_opens_of(name)
        if opener is not None:
            await opener.wait_opened(session_id)
            if not opener.may_erase(session_id):
                raise SessionExists(name, session_id)
        else:
            await openings.wait(session_id)
        with openings.block(session_id, erases=False):
            yield

    @asynccontextmanager
    async def erasing_session(self, key: SessionKey) -> AsyncGenerator[bool, None]:
        """Return a block in which a session is erased. Other tasks that open the session wait for its end.

        They also wait if the agent of the session starts during the block. The block receives True if the session may be
        erased. It receives False if the session was opened again and can write records.
        """
        openings = self.pending_opens_of(key.agent)
        await openings.wait_loaded(
            key.session_id
        )  # only until it is loaded: its handlers may wait for the erasing task
        with openings.block(key.session_id, erases=True):
            context = self.find_context(key)
            yield context is None or context.is_silent

    def find_context(self, key: SessionKey) -> SessionContext | None:
        """Return the context of a session in memory, without loading it from the journal.

        Also return the context of an unloaded session if the program still holds its `Session` object. Return None for
        other sessions.
        """
        opener = self._openers.get(key.agent)
        return None if opener is None else opener.running.sessions.find_any(key.session_id)

    def accepts_messages_to(self, key: SessionKey) -> bool:
        """Return True if a session is in memory, and its agent accepts messages."""
        if self.find_context(key) is None:
            return False
        runner = self._openers[key.agent].running.runner
        return runner.accepts and not runner.is_stopping

    def reload_context(self, key: SessionKey) -> SessionContext | None:
        """Return the context of a session in memory.

        If the session was unloaded and the program still holds its `Session` object, put it back into memory first.
        Return None for other sessions.
        """
        opener = self._openers.get(key.agent)
        return None if opener is None else opener.running.sessions.reload_any(key.session_id)

    def agents_with_session(self, session_id: str) -> list[str]:
        """Return the names of the running agents that have a session with this id in memory."""
        return [name for name in self._openers if self.find_context(SessionKey(name, session_id)) is not None]

    @property
    def openers(self) -> tuple[SessionOpener, ...]:
        """Session openers of all agents that were used, in the order of first use. With a journal, all agents count as used."""
        return tuple(self._openers.values())

    @property
    def resumed(self) -> int:
        """Number of sessions that the agents of this runtime have resumed from the journal."""
        return self._resumed + sum(each.running.lifecycle.resumed for each in self._openers.values())

    async def wait_started(self, name: str, caller: SessionContext | None) -> None:
        """Wait until the agent `name` is started, or until the start phase of the runtime has ended.

        Return at once unless `caller`, the session of the calling turn, was resumed from the journal.
        """
        await self.start_phase.wait_for(name, self, caller)
