"""The agents of a runtime, for each other: by name, and by what they can do."""

import re
import typing
from collections.abc import Iterator, Mapping
from typing import Any
from weakref import WeakSet

import attrs

from actgent.errors import NotRunning
from actgent.journal.listing import SessionKey
from actgent.protocols.base import Profile
from actgent.sessions.context import SessionContext

from .starting import Starting

_WORD = re.compile(r"\w+")
_STEM = 4
"""Words that share so many first letters, up to the end of the shorter one, count as the same: `translate`, `translates`."""


@attrs.frozen(kw_only=True)
class AgentCard:
    """What an agent says of itself to others."""

    name: str
    role: str = ""
    goal: str = ""
    capabilities: str = ""

    def count_matches(self, wanted: frozenset[str]) -> int:
        """How many of these words it says of itself."""
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
        self._cards: dict[str, AgentCard] = {}
        self._openers: dict[str, Any] = {}
        self._parentless: dict[SessionKey, WeakSet[SessionContext]] = {}

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

    def add(self, agent: Listed, opener: Any) -> None:
        """Enter an agent that has started; `opener` is its `SessionOpener`."""
        profile = agent.profile
        self._cards[agent.name] = AgentCard(
            name=agent.name, role=profile.role, goal=profile.goal, capabilities=profile.capabilities
        )
        self._openers[agent.name] = opener

    def remove(self, name: str) -> None:
        """Forget an agent that has stopped."""
        self._cards.pop(name, None)
        self._openers.pop(name, None)

    def opener(self, name: str) -> Any:
        """The `SessionOpener` of an agent.

        Raises:
            NotRunning: there is no such agent here.
        """
        if name not in self._openers:
            raise NotRunning(name)
        return self._openers[name]

    def find_session(self, key: SessionKey) -> SessionContext | None:
        """An agent's session of this id, if it is in memory."""
        opener = self._openers.get(key.agent)
        context: SessionContext | None = (
            None if opener is None else opener.running.sessions.get(key.session_id)
        )
        return None if context is None or context.closed else context

    def wait_for_parent(self, parent: SessionKey, child: SessionContext) -> None:
        """A session came back before the one that it belongs to."""
        self._parentless.setdefault(parent, WeakSet()).add(child)

    def attach_children(self, agent: str, parent: SessionContext) -> None:
        """An agent's session came back that others have waited for."""
        for child in self._parentless.pop(SessionKey(agent, parent.id), ()):
            if not child.closed:
                child.parent = parent
                parent.add_child(child)
