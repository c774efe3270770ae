"""`Modes`: checks which tool calls the current mode allows, and which actors may switch the mode.

The prompt lists the tools of all modes and never changes. Each call is checked against the current mode before it starts.
A switch is a change of the session's state, and one notice in the conversation describes it. One `Modes` object serves all sessions
of any number of agents.
"""

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from actgent.errors import ConfigurationError, ModeChangeRejected, did_you_mean
from actgent.errors.text_escaping import quoted
from actgent.messages import Message, ToolCall, new_id
from actgent.protocols.prompt_rendering import fill_template
from actgent.state.session_state import Store
from actgent.support.safe_logging import LogVariable, logger_of
from actgent.support.unknown_name_hints import lists_arguments
from actgent.support.user_code_calls import convert_user_error
from actgent.tools.callable_kinds import check_rule_function, rule_allows
from actgent.tools.tool_interface import Tool, ToolContext

from .mode import (
    ACT,
    DEFAULT_MESSAGE,
    INTEGRATION,
    ONBOARDING,
    PLAN,
    Actor,
    Mode,
    all_tools,
    names_of,
    to_actors,
    to_tools,
)
from .mode_changes import (
    START,
    STATE_KEY,
    ModeChange,
    changes_in,
    mark_of,
    state_changes,
    stored_name,
    unannounced,
)
from .system_notice_interface import Notice, NoticeSource

_log = logger_of(__name__)

Guard = Callable[[Mapping[str, Any], str, str], str | None]
"""Function `(state, from, to)` that returns the reason why a switch is not allowed, or None to allow it."""
Transitions = Mapping[str, Mapping[str, Collection[Actor]]]
"""Actors that may switch, by source mode and target mode."""

SET_MODE = "set_mode"
_PROMPT = (
    "You work in modes. A system message in the conversation says so when the mode changes; in the beginning it is "
    "{initial}. You see all tools at all times, but a call that the current mode does not allow is refused. Ask for "
    "another mode, or switch with {set_mode} where you may."
)
"""Beginning of the description of the modes in the system prompt."""
UNIVERSAL = frozenset(
    "set_mode get_mode_info get_agent_state get_agent_config get_integration_state suggest_actions "
    "schedule_task get_scheduled_tasks cancel_scheduled_task".split()
)
"""Built-in tools that every mode allows."""
CONFIGURATION = frozenset(
    "save_settings complete_onboarding check_existing_config get_onboarding_status".split()
)
"""Built-in tools of the onboarding mode."""
TESTING = frozenset(
    "record_test_result document_tool generate_test_report complete_integration_testing".split()
)
"""Built-in tools of the integration mode."""
DENIED = "Tool '{tool}' is not available in {mode} mode. Please use tools that are appropriate for the current mode."
_COMMANDS = {"integrate": "integration", "planning": "plan", "action": "act", "setup": "onboarding"}
"""Alternative names of the built-in modes in a user's mode commands."""


@lists_arguments
class Modes(NoticeSource):
    """The modes of an agent: `Agent(..., modes=Modes(universal=[get_time], execution=[deploy]))`.

    The built-in modes are onboarding (configuration tools), integration (all tools), plan (universal tools only) and act
    (execution tools). A custom mode with the same name replaces a built-in one. Tools that are passed as objects are
    added to the agent, so `tools=` need not repeat them.

    Args:
        modes: Custom modes.
        universal: Tools that every mode allows.
        configuration: Tools of the onboarding mode, in addition to the built-in ones.
        testing: Tools of the integration mode only, in addition to the built-in ones.
        execution: Tools of the act mode; None allows every tool that no other argument names.
        initial: Mode of a new session; by default onboarding, or the first custom mode if `ready` is False.
        fallback: Mode of a stored session whose mode no longer exists; by default plan, or the initial mode if `ready`
            is False.
        agent_may: Modes that the model may switch to, in addition to those whose `who` includes `agent`.
        transitions: Permitted switches by source mode, target mode and actors. From a source mode in the table, all
            other switches are rejected. For other source modes, the `who` of the target mode applies.
        guard: Function that can reject a switch.
        commands: If True, a user's message that is only the name of a mode (or integrate, planning, action, setup) switches to
            this mode, as the actor `user`.
        required_settings: Names of settings that `complete_onboarding` requires.
        ready: False omits the four built-in modes and their tools.

    Raises:
        ConfigurationError: An argument is invalid; the text names it.
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
        self._modes = self._collect_modes(modes)
        self.initial = self._validate_name("initial", initial or next(iter(self._modes)))
        self.fallback = self._validate_name("fallback", fallback or (PLAN.name if ready else self.initial))
        self.agent_may = frozenset(self._validate_name("agent_may", name) for name in agent_may)
        self._transitions = self._validate_transitions(transitions or {})
        self.universal = UNIVERSAL | names_of(self._given["universal"])
        """Names of the tools that every mode allows."""
        self._tools = {name: self._names_of(mode) for name, mode in self._modes.items()}
        named = (*self._given.values(), *(m.tools for m in modes if not callable(m.tools)))
        self.named_tools = frozenset().union(*map(names_of, named))
        """Names of all tools in the arguments, given as names or objects."""
        self._assigned = self.named_tools | CONFIGURATION | TESTING

    def _collect_modes(self, own: Sequence[Mode]) -> dict[str, Mode]:
        """Return all modes by name: the built-in ones if they are enabled, then the custom modes `own`.

        A custom mode replaces a built-in mode of the same name.

        Raises:
            ConfigurationError: A value is not a `Mode`, two modes have the same name, or there is no mode.
        """
        for mode in own:
            if not isinstance(mode, Mode):
                raise ConfigurationError(f"Modes(...) needs Mode objects, not {mode!r}")
        modes = {mode.name: mode for mode in (ONBOARDING, INTEGRATION, PLAN, ACT) if self.is_ready}
        named = {mode.name: mode for mode in own}
        if len(named) < len(own):
            twice = next(mode.name for mode in own if named[mode.name] is not mode)
            raise ConfigurationError(f"two modes are named {twice!r}: give one of them another name")
        if not modes and not named:
            raise ConfigurationError("Modes(ready=False) needs custom modes: Modes(Mode(...), ready=False)")
        return {**modes, **named}

    def _describe_unknown(self, name: object) -> str:
        """Return an error text for an unknown mode name, with the known modes and a suggestion."""
        return f"{quoted(name)} (known: {', '.join(self._modes)}) {did_you_mean(name, self._modes)}".rstrip()

    def _validate_name(self, argument: str, name: str) -> str:
        if name not in self._modes:
            raise ConfigurationError(f"Modes({argument}=...): unknown mode {self._describe_unknown(name)}")
        return name

    def _validate_transitions(self, transitions: Transitions) -> dict[str, dict[str, frozenset[Actor]]]:
        return {
            self._validate_name("transitions", start): {
                self._validate_name("transitions", end): to_actors(who) for end, who in ends.items()
            }
            for start, ends in transitions.items()
        }

    def _names_of(self, mode: Mode) -> frozenset[str]:
        """Return the names of the tools of a mode; empty if the mode has a rule function in place of a list."""
        if mode is ONBOARDING:
            return names_of(self._given["configuration"]) | CONFIGURATION
        if mode is ACT:
            return names_of(self._given["execution"])
        return frozenset() if callable(mode.tools) else names_of(mode.tools)

    # --- contents -----------------------------------------------------------------------

    def __iter__(self) -> Iterator[Mode]:
        return iter(self._modes.values())

    def __contains__(self, name: object) -> bool:
        return name in self._modes

    @property
    def tools(self) -> list[Tool]:
        """Tools that were passed as objects, without duplicates."""
        lists = (*self._given.values(), *(mode.tools for mode in self if not callable(mode.tools)))
        return list(dict.fromkeys(tool for tools in lists for tool in tools if isinstance(tool, Tool)))

    # --- access to tools --------------------------------------------------------------

    def refusal(self, call: ToolCall, tool: Tool, context: ToolContext) -> str | None:
        """Return the reason why the session's mode does not allow a tool call; None if the mode allows it."""
        mode = self.mode_of(context.state or {})
        if self.allows(mode, tool, call=call, context=context):
            return None
        return DENIED.format(tool=tool.name, mode=mode)

    def allows(
        self, mode: str, tool: Tool, *, call: ToolCall | None = None, context: ToolContext | None = None
    ) -> bool:
        """Return True if a mode allows a tool: the tool is in the mode's list, or the mode's rule function accepts the call.

        The rule function gets `call` and `context`, or an empty call and context if they are None.
        """
        if self._is_universal(tool) or tool.name in self._tools[mode]:
            return True
        if self._modes[mode] is ACT:
            return self._takes_rest and tool.name not in self._assigned
        rule = self._modes[mode].tools
        if not callable(rule):
            return False
        answer = rule(call or ToolCall(tool.name, {}), tool, context or ToolContext())
        return rule_allows(f"the rule of the mode {mode!r}", answer)

    def _is_universal(self, tool: Tool) -> bool:
        """Return True if every mode allows the tool."""
        return tool.name in self.universal or tool.in_every_mode

    # --- current mode -----------------------------------------------------------------

    def mode_of(self, state: Mapping[str, Any]) -> str:
        """Return the mode of a session from its state: the initial mode before the first switch.

        A stored mode that no longer exists is replaced by the fallback mode.
        """
        if STATE_KEY not in state:
            return self.initial
        name = stored_name(state[STATE_KEY])
        return name if name in self._modes else self.fallback

    # --- switching ---------------------------------------------------------------------------

    def switch(
        self, state: Store, mode: str, *, by: Actor, reason: str = "", force: bool = False, key: str = ""
    ) -> ModeChange:
        """Switch a session's mode, and return the change. If the session has this mode already, nothing changes.

        A second call with the same `key` returns the change of the first call.

        Raises:
            ConfigurationError: The mode or the actor `by` does not exist.
            ModeChangeRejected: The actor may not switch to the mode, or not at this moment. The mode is unchanged.
        """
        if mode not in self._modes:
            raise ConfigurationError(f"Invalid mode specified: {self._describe_unknown(mode)}")
        to_actors((by,))
        if key and (done := next((c for c in changes_in(state) if c.key == key), None)):
            return done
        current = self.mode_of(state)
        if mode == current:
            return ModeChange(previous=current, current=current, by=by)
        if (why_rejected := self.rejection_reason(state, mode, by=by, force=force)) is not None:
            raise ModeChangeRejected(current, mode, why_rejected)
        return self._change(state, mode, by=by, reason=reason, key=key)

    def rejection_reason(
        self, state: Mapping[str, Any], mode: str, *, by: Actor, force: bool = False
    ) -> str | None:
        """Return the reason why the actor `by` may not switch to a mode now; None if the actor may.

        `force` by an admin overrides all rules.
        """
        if force:
            return None if by == "admin" else "only an admin may force a switch"
        current = self.mode_of(state)
        who = self.permitted_actors(current, mode)
        if by not in who:
            able = ", ".join(sorted(who)) or "no actor"
            return f"{by} may not switch from {current} to {mode} (allowed: {able})"
        if self._guard is None:
            return None
        try:
            reason: object = self._guard(state, current, mode)
        except BaseException as raised:  # noqa: ASYNC103, BLE001 - raised below
            error = convert_user_error(raised, "guard", "of modes")
            raise error from None  # noqa: ASYNC104 - convert_user_error raises a cancellation itself
        if not isinstance(reason, str | None):
            raise ConfigurationError(
                f"the guard of modes returned {reason!r:.100}: return None to allow the switch, or the reason against the switch as text"
            )
        return reason

    def permitted_actors(self, current: str, mode: str) -> frozenset[Actor]:
        """Return the actors that may switch from the mode `current` to `mode` by the rules.

        A guard may still reject the switch.
        """
        if current in self._transitions:
            return self._transitions[current].get(mode, frozenset())
        who = self._modes[mode].who
        return who | {"agent"} if mode in self.agent_may else who

    def _change(self, state: Store, mode: str, *, by: str, reason: str, key: str) -> ModeChange:
        """Record a mode change in the state without checking the rules, and return the change."""
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
        state.dispatch(partial(state_changes, change=change))
        return change

    def apply_command(self, state: Store, message: Message) -> str:
        """Switch the mode if a user's message is a mode command. Return a note for the model if the switch is rejected, else ""."""
        if message.sender.kind != "user":
            return ""
        word = message.text.strip().casefold()
        mode = word if word in self._modes else _COMMANDS.get(word, "")
        if mode not in self._modes:
            return ""
        try:
            self.switch(state, mode, by="user", reason="the user said so", key=f"{message.id}/mode")
        except ModeChangeRejected as refused:
            return f"The user asks for another mode, but {refused}."
        return ""

    def replace_unknown_mode(self, session: Any) -> None:
        """Switch a session to the fallback mode if the agent no longer has its stored mode. Called for each session that is opened."""
        stored = session.state.get(STATE_KEY)
        name = stored_name(stored)
        if stored is None or name in self._modes:
            return
        _log.warning(
            "session %s was stored in the unknown mode %r: switched to %r",
            LogVariable(session.id),
            name,
            self.fallback,
        )
        self._change(session.state, self.fallback, by="system", reason="the stored mode is unknown", key="")

    # --- system prompt ---------------------------------------------------

    def system_prompt(self, tools: Sequence[Tool]) -> str:
        """Return the part of the system prompt that lists the modes, their tools, and the modes to which the model may switch.

        The text does not depend on the current mode.
        """
        universal = _join(tool.name for tool in tools if self._is_universal(tool))
        lines = [
            _PROMPT.format(initial=self.initial, set_mode=SET_MODE),
            f"Tools of every mode: {universal}.",
            *(self._prompt_line(mode, tools) for mode in self),
        ]
        if able := [mode.name for mode in self if "agent" in mode.who or mode.name in self.agent_may]:
            lines.append(f"You may switch to {_join(able)} yourself.")
        return "\n".join(lines)

    def _prompt_line(self, mode: Mode, tools: Sequence[Tool]) -> str:
        heading = f"- {mode.name}: {mode.prompt}" if mode.prompt else f"- {mode.name}"
        if mode.tools is all_tools:
            return f"{heading} (all tools)"
        if callable(mode.tools):
            return f"{heading} (further tools by a rule)"
        further = [tool for tool in tools if not self._is_universal(tool) and self.allows(mode.name, tool)]
        return f"{heading} (further tools: {_join(tool.name for tool in further)})"

    # --- notices -------------------------------------------------------

    def due(self, state: Mapping[str, Any], last_mark: str | None) -> Sequence[Notice]:
        if mark_of(state.get(STATE_KEY)) == (last_mark or START):
            return ()
        changes = unannounced(changes_in(state), last_mark, self.initial)
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


def _join(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"
