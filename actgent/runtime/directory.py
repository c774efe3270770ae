"""The agents of a runtime, for each other: by name, and by what they can do."""

import re
import typing
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import asynccontextmanager

import attrs

from actgent.errors import NotRunning, SessionExists
from actgent.journal.listing import SessionKey
from actgent.protocols.base import Profile
from actgent.sessions.context import SessionContext

from .sessions.opener import SessionOpener
from .sessions.reopening import Openings
from .sessions.table import Trees
from .starting import Starting

_WORD = re.compile(r"\w+")
_STEM = 4
"""Words that share so many first letters, up to the end of the shorter one, count as the same: `translate`, `translates`."""


@attrs.frozen(kw_only=True)
class AgentCard:
    """What an agent says of itself to others."""

    name: str
    """Unique in its runtime."""
    role: str = ""
    """What it is, as its profile has it."""
    goal: str = ""
    """What it works for, as its profile has it."""
    capabilities: str = ""
    """What it can do, in words; agents are found by them."""

    def count_matches(self, wanted: frozenset[str]) -> int:
        """Count how many of these words are in its name, role, goal and capabilities."""
        known = words_of(f"{self.name} {self.role} {self.goal} {self.capabilities}")
        return sum(any(_is_same(word, other) for other in known) for word in wanted)


def words_of(text: str) -> frozenset[str]:
    """The words of a text, in small letters; what joins words in names parts them."""
    return frozenset(_WORD.findall(text.casefold().replace("_", " ")))


def _is_same(word: str, other: str) -> bool:
    shorter, longer = sorted((word, other), key=len)
    return word == other or (len(shorter) >= _STEM and longer.startswith(shorter))


class Listed(typing.Protocol):
    """An agent, as far as the directory is concerned."""

    name: str
    profile: Profile


class Directory(Mapping[str, AgentCard]):
    """The agents that run in one runtime now: a mapping of names to cards."""

    def __init__(self) -> None:
        self.starting = Starting()
        self.trees = Trees()
        self._cards: dict[str, AgentCard] = {}
        self._openers: dict[str, SessionOpener] = {}
        self._resumed = 0
        """By agents that have stopped."""
        self._agents: dict[str, Listed] = {}
        self._openings: dict[str, Openings] = {}

    def __getitem__(self, name: str) -> AgentCard:
        return self._cards[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._cards)

    def __len__(self) -> int:
        return len(self._cards)

    def find(self, capability: str = "") -> tuple[AgentCard, ...]:
        """The agents that say most of these words of themselves, the best first; those that say none are left out.

        Without words all of them, by name.
        """
        wanted = words_of(capability)
        if not wanted:
            return tuple(self._cards[name] for name in sorted(self._cards))
        found = [(-card.count_matches(wanted), name) for name, card in self._cards.items()]
        return tuple(self._cards[name] for matches, name in sorted(found) if matches)

    # --- for the agents themselves -----------------------------------------------------------

    def add(self, agent: Listed, opener: SessionOpener) -> None:
        """Enter an agent that has started."""
        profile = agent.profile
        self._cards[agent.name] = AgentCard(
            name=agent.name, role=profile.role, goal=profile.goal, capabilities=profile.capabilities
        )
        self._openers[agent.name] = opener
        self._agents[agent.name] = agent

    def remove(self, name: str) -> None:
        """Forget an agent that has stopped."""
        self._cards.pop(name, None)
        if (opener := self._openers.pop(name, None)) is not None:
            self._resumed += opener.running.lifecycle.resumed
        self._agents.pop(name, None)
        self.trees.remove(name)

    def openings_of(self, name: str) -> Openings:
        """The sessions of an agent that are just opened or erased, whether the agent runs or not."""
        return self._openings.setdefault(name, Openings())

    def agent(self, name: str) -> Listed | None:
        """The agent of this name, as the program made it; None if it does not run here."""
        return self._agents.get(name)

    def opener(self, name: str) -> SessionOpener:
        """The `SessionOpener` of an agent.

        Raises:
            NotRunning: there is no such agent here.
        """
        if name not in self._openers:
            raise NotRunning(name, self._openers)
        return self._openers[name]

    @asynccontextmanager
    async def making(self, name: str, session_id: str) -> AsyncGenerator[None, None]:
        """A block in which others who want a session of this id wait, if the agent runs here; the journal refuses a second one anyway.

        Raises:
            SessionExists: somebody makes it just now, and this task waits for nobody as it makes a session itself.
        """
        opener, openings = self._openers.get(name), self.openings_of(name)
        if opener is not None:
            await opener.wait_opened(session_id)
            if not opener.may_erase(session_id):
                raise SessionExists(name, session_id)
        else:
            await openings.wait(session_id)
        with openings.block(session_id, erases=False):
            yield

    @asynccontextmanager
    async def erasing(self, key: SessionKey) -> AsyncGenerator[bool, None]:
        """A block in which others who want a session wait, also if its agent starts in the block.

        False if the session is open, and may be written to.
        """
        openings = self.openings_of(key.agent)
        await openings.wait_loaded(key.session_id)  # no longer: handlers may wait for whoever erases
        with openings.block(key.session_id, erases=True):
            opener = self._openers.get(key.agent)
            context = None if opener is None else opener.running.sessions.find_any(key.session_id)
            yield context is None or context.is_silent

    @property
    def openers(self) -> tuple[SessionOpener, ...]:
        """Of all agents, in the order in which they were started."""
        return tuple(self._openers.values())

    @property
    def resumed(self) -> int:
        """Sessions that the journal brought back in the middle of something, to all agents that were ever here."""
        return self._resumed + sum(each.running.lifecycle.resumed for each in self._openers.values())

    async def wait_started(self, name: str, asker: SessionContext | None) -> None:
        """Let a session from the journal wait until an agent is started, or none will be any more."""
        await self.starting.wait_for(name, self, asker)
