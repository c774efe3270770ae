"""Modes: what an agent may do at the moment, and who may change that.

All tools of all modes stand in the prompt, which never changes. What the mode allows is checked in code when a
call is about to start. A change of mode is a change of the session's state; the conversation is told of it by one
notice, see `notices`. Everything here is sync; a `Modes` serves all sessions of any number of agents.
"""

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from actgent.errors import ConfigurationError, ModeRefused, meant
from actgent.errors.printable import quoted
from actgent.messages import Message, ToolCall, new_id
from actgent.protocols.prompts import fill_template
from actgent.state.store import Store
from actgent.support.foreign import failure_of
from actgent.support.logs import Each, logger_of
from actgent.tools.base import Tool, ToolContext
from actgent.tools.generators import allowed_by, check_rule_function

from .changes import START, STATE_KEY, ModeChange, changes_in, entered, mark_of, stored_name, untold
from .mode import (
    ACT,
    DEFAULT_MESSAGE,
    INTEGRATION,
    ONBOARDING,
    PLAN,
    Actor,
    Mode,
    names_of,
    to_actors,
    to_tools,
)
from .notices import Notice, NoticeSource

_log = logger_of(__name__)

Guard = Callable[[Mapping[str, Any], str, str], str | None]
"""`(state, from, to)`: why a switch may not happen now, in words; None: it may."""
Transitions = Mapping[str, Mapping[str, Collection[Actor]]]
"""From which mode to which others, and by whom."""

SET_MODE = "set_mode"
UNIVERSAL = frozenset(
    "set_mode get_mode_info get_agent_state get_agent_config get_integration_state suggest_actions "
    "schedule_task get_scheduled_tasks cancel_scheduled_task".split()
)
"""The tools of this framework that no mode locks out, where an agent has them."""
CONFIGURATION = frozenset(
    "save_settings complete_onboarding check_existing_config get_onboarding_status".split()
)
"""The tools that come with the mode onboarding."""
TESTING = frozenset(
    "record_test_result document_tool generate_test_report complete_integration_testing".split()
)
"""The tools that come with the mode integration."""
DENIED = "Tool '{tool}' is not available in {mode} mode. Please use tools that are appropriate for the current mode."
_COMMANDS = {"integrate": "integration", "planning": "plan", "action": "act", "setup": "onboarding"}
"""Further words for the ready modes."""


class Modes(NoticeSource):
    """The modes of an agent: `Agent(..., modes=Modes(universal=[get_time], execution=[deploy]))`.

    There are onboarding (configuration tools), integration (all tools), plan (universal tools only) and act
    (execution tools), and those that are given; one of the same name takes a ready one's place. Tools that are
    given as objects need not stand in the agent's `tools=` again.

    Args:
        modes: Modes of your own.
        universal: Tools that every mode has.
        configuration: Tools of the mode onboarding, beside those that come with it.
        testing: Tools of the mode integration alone, beside those that come with it.
        execution: Tools of the mode act; None is every tool that no other place names.
        initial: The mode of a new session; the default is onboarding, without ready modes the first.
        fallback: What an unknown mode becomes that a session was stored in; without ready modes the default is the
            initial one.
        agent_may: Modes that the model may switch itself to, beside those whose `who` says so.
        transitions: From which mode to which others, and by whom. It rules out what it does not name, for the
            modes that it begins from; for all others the target's `who` decides.
        guard: Asked before each switch.
        commands: Whether a user's message that is only the name of a mode (or integrate, planning, action, setup)
            switches to it, as the user.
        required_settings: What `complete_onboarding` insists on.
        ready: False leaves the four ready modes out, and their tools.

    Raises:
        ConfigurationError: one of these is wrong; the text names it.
    """

    name = "mode"

    def __init__(
        self,
        *modes: Mode,
        universal: Iterable[Tool | str] = (),
        configuration: Iterable[Tool | str] = (),
        testing: Iterable[Tool | str] = (),
        execution: Iterable[Tool | str] | None = None,
        initial: str | None = None,
        fallback: str | None = None,
        agent_may: Iterable[str] = (),
        transitions: Transitions | None = None,
        guard: Guard | None = None,
        commands: bool = False,
        required_settings: Sequence[str] = ("language", "operators", "admin_contact"),
        ready: bool = True,
    ) -> None:
        self.is_ready = ready
        self.commands = commands
        self.required_settings = tuple(required_settings)
        if guard is not None:
            check_rule_function("Modes(guard=...)", guard, takes="(state, from, to)")
        self._guard = guard
        self._given: dict[str, tuple[Tool | str, ...]] = {
            "universal": to_tools(universal),
            "configuration": to_tools(configuration),
            "testing": to_tools(testing),
            "execution": to_tools(execution or ()),
        }
        self._takes_rest = ready and execution is None
        self._modes = self._arranged(modes)
        self.initial = self._known("initial", initial or next(iter(self._modes)))
        self.fallback = self._known("fallback", fallback or (PLAN.name if ready else self.initial))
        self.agent_may = frozenset(self._known("agent_may", name) for name in agent_may)
        self._transitions = self._checked(transitions or {})
        self.universal = UNIVERSAL | names_of(self._given["universal"])
        """The names of the tools that every mode has."""
        self._tools = {name: self._names_of(mode) for name, mode in self._modes.items()}
        named = (*self._given.values(), *(m.tools for m in modes if not callable(m.tools)))
        self.named_tools = frozenset().union(*map(names_of, named))
        """The names of all tools that were given, by name or as objects."""
        self._assigned = self.named_tools | CONFIGURATION | TESTING

    def _arranged(self, own: Sequence[Mode]) -> dict[str, Mode]:
        """All modes by name; the ready ones first."""
        for mode in own:
            if not isinstance(mode, Mode):
                raise ConfigurationError(f"Modes takes Mode objects, not {mode!r}")
        modes = {mode.name: mode for mode in (ONBOARDING, INTEGRATION, PLAN, ACT) if self.is_ready}
        named = {mode.name: mode for mode in own}
        if len(named) < len(own):
            twice = next(mode.name for mode in own if named[mode.name] is not mode)
            raise ConfigurationError(f"two modes are named {twice!r}: give one of them another name")
        if not modes and not named:
            raise ConfigurationError(
                "Modes(ready=False) needs modes of your own: Modes(Mode(...), ready=False)"
            )
        return {**modes, **named}

    def _unlike(self, name: object) -> str:
        """A name that no mode has, and the modes that there are."""
        return f"{quoted(name)} (known: {', '.join(self._modes)}) {meant(name, self._modes)}".rstrip()

    def _known(self, argument: str, name: str) -> str:
        if name not in self._modes:
            raise ConfigurationError(f"Modes({argument}=...): unknown mode {self._unlike(name)}")
        return name

    def _checked(self, transitions: Transitions) -> dict[str, dict[str, frozenset[Actor]]]:
        return {
            self._known("transitions", start): {
                self._known("transitions", end): to_actors(who) for end, who in ends.items()
            }
            for start, ends in transitions.items()
        }

    def _names_of(self, mode: Mode) -> frozenset[str]:
        """The names of a mode's own tools, as far as it names them."""
        if mode is ONBOARDING:
            return names_of(self._given["configuration"]) | CONFIGURATION
        if mode is ACT:
            return names_of(self._given["execution"])
        return frozenset() if callable(mode.tools) else names_of(mode.tools)

    # --- what there is -----------------------------------------------------------------------

    def __iter__(self) -> Iterator[Mode]:
        return iter(self._modes.values())

    def __contains__(self, name: object) -> bool:
        return name in self._modes

    @property
    def tools(self) -> list[Tool]:
        """The tools that were given as objects, each once."""
        lists = (*self._given.values(), *(mode.tools for mode in self if not callable(mode.tools)))
        return list(dict.fromkeys(tool for tools in lists for tool in tools if isinstance(tool, Tool)))

    # --- which tools a mode has --------------------------------------------------------------

    def refusal(self, call: ToolCall, tool: Tool, told: ToolContext) -> str | None:
        """The rule of access: why the session's mode does not allow a call; None: it does."""
        mode = self.mode_of(told.state or {})
        if self.allows(mode, tool, call=call, told=told):
            return None
        return DENIED.format(tool=tool.name, mode=mode)

    def allows(
        self, mode: str, tool: Tool, *, call: ToolCall | None = None, told: ToolContext | None = None
    ) -> bool:
        """Return True if a mode has a tool; `call` and `told` are for rules of your own that look at them."""
        if tool.name in self.universal or tool.in_every_mode or tool.name in self._tools[mode]:
            return True
        if self._modes[mode] is ACT:
            return self._takes_rest and tool.name not in self._assigned
        rule = self._modes[mode].tools
        if not callable(rule):
            return False
        answer = rule(call or ToolCall(tool.name, {}), tool, told or ToolContext())
        return allowed_by(f"the rule of the mode {mode!r}", answer)

    # --- which mode there is -----------------------------------------------------------------

    def mode_of(self, state: Mapping[str, Any]) -> str:
        """The mode of a session, by its state."""
        if STATE_KEY not in state:
            return self.initial
        name = stored_name(state[STATE_KEY])
        return name if name in self._modes else self.fallback

    # --- switching ---------------------------------------------------------------------------

    def switch(
        self,
        state: Store,
        mode: str,
        *,
        by: Actor,
        reason: str = "",
        force: bool = False,
        key: str = "",
    ) -> ModeChange:
        """Switch a session's mode. To the mode that it has: nothing happens. What was done for `key` is not done again.

        Raises:
            ConfigurationError: there is no such mode, or no such `by`.
            ModeRefused: who asks may not, or not now; nothing has changed.
        """
        if mode not in self._modes:
            raise ConfigurationError(f"Invalid mode specified: {self._unlike(mode)}")
        to_actors((by,))
        if key and (done := next((c for c in changes_in(state) if c.key == key), None)):
            return done
        current = self.mode_of(state)
        if mode == current:
            return ModeChange(previous=current, current=current, by=by)
        if (why := self.why_not(state, mode, by=by, force=force)) is not None:
            raise ModeRefused(current, mode, why)
        return self._change(state, mode, by=by, reason=reason, key=key)

    def why_not(self, state: Mapping[str, Any], mode: str, *, by: Actor, force: bool = False) -> str | None:
        """Why someone may not switch to another mode now, in words; None: they may. An admin's force goes before all rules."""
        if force:
            return None if by == "admin" else "only an admin may force a switch"
        current = self.mode_of(state)
        who = self.who_may(current, mode)
        if by not in who:
            able = ", ".join(sorted(who)) or "nobody"
            return f"{by} may not switch from {current} to {mode} (who may: {able})"
        if self._guard is None:
            return None
        try:
            reason: object = self._guard(state, current, mode)
        except BaseException as raised:  # noqa: ASYNC103, BLE001 - raised below
            error = failure_of(raised, "guard", "of modes")
            raise error from None  # noqa: ASYNC104 - failure_of raises a cancellation itself
        if not isinstance(reason, str | None):
            raise ConfigurationError(
                f"the guard of modes returned {reason!r:.100}: return None to allow the switch, or the reason against it as text"
            )
        return reason

    def who_may(self, current: str, mode: str) -> frozenset[Actor]:
        """Return the actors that may switch from one mode to another, as far as no guard has a say."""
        if current in self._transitions:
            return self._transitions[current].get(mode, frozenset())
        who = self._modes[mode].who
        return who | {"agent"} if mode in self.agent_may else who

    def _change(self, state: Store, mode: str, *, by: str, reason: str, key: str) -> ModeChange:
        """Make a change that is allowed."""
        last = changes_in(state)
        change = ModeChange(
            previous=stored_name(state.get(STATE_KEY)) or self.initial,
            current=mode,
            by=by,
            reason=reason,
            number=(last[-1].number if last else 0) + 1,
            key=key or new_id(),
            at=time.time(),
        )
        state.dispatch(partial(entered, change=change))
        return change

    def obey(self, state: Store, message: Message) -> str:
        """Do what a user's message of one word says about the mode; returns why not, in words for the model, if so."""
        if message.sender.kind != "user":
            return ""
        word = message.text.strip().casefold()
        mode = word if word in self._modes else _COMMANDS.get(word, "")
        if mode not in self._modes:
            return ""
        try:
            self.switch(state, mode, by="user", reason="the user said so", key=f"{message.id}/mode")
        except ModeRefused as refused:
            return f"The user asks for another mode, but {refused}."
        return ""

    def settle(self, session: Any) -> None:
        """Take a session that was stored in an unknown mode into the fallback; called with each session that is opened."""
        kept = session.state.get(STATE_KEY)
        name = stored_name(kept)
        if kept is None or name in self._modes:
            return
        _log.warning(
            "session %s was stored in the mode %r, which is not known: it is %r now",
            Each(session.id),
            name,
            self.fallback,
        )
        self._change(session.state, self.fallback, by="system", reason="the stored mode is not known", key="")

    # --- what the conversation is told -------------------------------------------------------

    def due(self, state: Mapping[str, Any], told: str | None) -> Sequence[Notice]:
        kept = state.get(STATE_KEY)
        if mark_of(kept) == (told or START):
            return ()
        changes = untold(changes_in(state), told, self.initial)
        return [Notice(change.mark, self._message(change)) for change in changes]

    def _message(self, change: ModeChange) -> str:
        mode = self._modes.get(change.current)
        values = {
            "mode": change.current,
            "previous": change.previous,
            "by": change.by,
            "reason": change.reason,
        }
        return fill_template(DEFAULT_MESSAGE if mode is None else mode.message, values)
