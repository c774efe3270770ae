"""Checks of the arguments of agents, when they are constructed."""

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from actgent.actors.inbox import InboxBounds
from actgent.errors import ConfigurationError, did_you_mean_or_list
from actgent.information_flow_labels import Policy
from actgent.limits_and_schedules.id_and_number_validation import (
    at_least_one,
    check_id,
    check_limits,
    check_seconds,
)
from actgent.memory.memory_interface import Memory, MemoryLike
from actgent.protocols.protocol_interface import (
    ClassificationType,
    Instruction,
    Protocol,
    to_instruction,
    to_type,
)
from actgent.support.attrs_class_repr import FieldRepr
from actgent.tools.callable_kinds import is_sync_callable
from actgent.toolsets.toolset import Toolset


def check_arguments(
    *, name: object, tools: object, protocol: object, limits: object, memory: object, models: object
) -> None:
    """Check the types of `Agent` arguments, for programs without a type checker.

    Raises:
        ConfigurationError: An argument is invalid; the text names it.
    """
    if not isinstance(name, str) or not name.strip():
        raise ConfigurationError(f"name= must be a string that is not empty, e.g. 'clerk', not {name!r:.200}")
    check_id("name", name)
    check_tools(tools)
    if not isinstance(protocol, Protocol | None):
        raise ConfigurationError(
            f"protocol= takes a Protocol object, e.g. Bare(), not {protocol!r}{_missing_instance_hint(protocol, Protocol)}"
        )
    check_limits(limits)
    if memory is not None:
        _check_memory(memory)
    if not isinstance(models, Mapping | None):
        raise ConfigurationError(f"models= takes {{role: model}}, not {models!r}")


def check_policy(policy: object) -> Policy | None:
    """Return the argument `policy=` of an agent.

    Raises:
        ConfigurationError: The argument is not a `Policy`.
    """
    if isinstance(policy, Policy | None):
        return policy
    raise ConfigurationError(
        f"policy= takes a Policy, e.g. Policy(), not {policy!r:.200}{_missing_instance_hint(policy, Policy)}"
    )


def check_tools(tools: object) -> None:
    """Raise if `tools=` is not a list of tools, e.g. one tool or a dict.

    Raises:
        ConfigurationError: `tools` is text, a mapping, a toolset, or not iterable.
    """
    if isinstance(tools, str | Mapping | Toolset) or not isinstance(tools, Iterable):
        named = getattr(tools, "name", None) or getattr(tools, "__name__", None)
        raise ConfigurationError(
            f"tools= takes a list of tools: tools=[{named or '...'}], not {tools!r:.200}"
        )


def _check_memory(memory: object) -> None:
    """Raise `ConfigurationError` if the value cannot be the memory of an agent."""
    manage = getattr(memory, "manage_history", None)
    function = memory if manage is None else manage
    if isinstance(memory, Memory) or (not isinstance(memory, type) and callable(function)):
        if callable(function) and not is_sync_callable(function):
            raise ConfigurationError(
                f"memory= must be a Memory or a function without `async` that returns the messages, not {function!r:.200}"
            )
        return
    hint = _missing_instance_hint(memory, Memory)
    if isinstance(memory, type) and manage is not None:
        hint = f": write {memory.__name__}()"
    raise ConfigurationError(
        "memory= takes a Memory object, a function of the history, or an object with manage_history(history), "
        f"not {memory!r}{hint}"
    )


def memory_of(memory: MemoryLike) -> Memory:
    """Return a `Memory` for the `memory=` argument. A function, or an object with `manage_history`, is wrapped.

    Raises:
        ConfigurationError: The value is neither.
    """
    _check_memory(memory)
    if isinstance(memory, Memory):
        return memory
    from actgent.memory.history_processor_memory import ManagedMemory  # noqa: PLC0415 - most agents have no such function

    manage: Any = getattr(memory, "manage_history", memory)
    return ManagedMemory(manage)


@attrs.frozen(kw_only=True, repr=False)
class AgentBounds(FieldRepr):
    """Capacities and timeouts of one agent: inbox, threads, handlers.

    One object holds them, because CPython stores an agent with fewer attributes in less memory.
    """

    inbox: InboxBounds
    parallel_tools: bool
    max_threads: int
    handler_timeout: float
    thread_grace: float


def check_each_seconds(**seconds: float) -> None:
    """Check that the value of each keyword argument is a number of seconds.

    Raises:
        ConfigurationError: A value is not a number of seconds; the text names the argument.
    """
    for name, value in seconds.items():
        check_seconds(name, value)


def _missing_instance_hint(value: object, kind: type) -> str:
    """Return advice for the error about an argument that must be an object of the class `kind`.

    For a class, the advice is to create an object. For a name, it is to use the builder. For other values, return an empty text.
    """
    if isinstance(value, type) and issubclass(value, kind):
        return f": write {value.__name__}()"
    return f": AgentBuilder.protocol({value!r}) takes names" if isinstance(value, str) else ""


def forms_of(instructions: object) -> tuple[Instruction, ...]:
    """Convert the argument `instructions=`: each item is an object, a dict with its fields, or a name.

    Raises:
        ConfigurationError: The value is a prompt, or not a list of instructions.
    """
    if isinstance(instructions, str):
        raise ConfigurationError(_NOT_A_PROMPT.format(f"the text {instructions!r:.100}"))
    if not isinstance(instructions, Iterable):
        raise ConfigurationError(
            f"instructions= takes a list of Instruction objects, not {instructions!r:.200}"
        )
    known = tuple(map(to_instruction, instructions))
    check_each("instructions", known, kind=Instruction)
    for each in known:
        _check_name("instruction", each.name)
        if len(each.name.split()) > _NAME_WORDS or each.name.endswith((".", "!", "?")):
            raise ConfigurationError(_NOT_A_PROMPT.format(f"the sentence {each.name!r:.100}"))
    return known


def types_of(types: object) -> tuple[ClassificationType, ...]:
    """Convert the argument `types=`: each item is a `ClassificationType` or a dict with its fields.

    Raises:
        ConfigurationError: The value is not a list of types.
    """
    if isinstance(types, str | Mapping) or not isinstance(types, Iterable):
        raise ConfigurationError(f"types= takes a list of ClassificationType objects, not {types!r:.200}")
    known = tuple(map(to_type, types))
    check_each("types", known, kind=ClassificationType)
    for each in known:
        _check_name("type", each.name)
    return known


def _check_name(what: str, name: object) -> None:
    if not isinstance(name, str):
        raise ConfigurationError(
            f"the name of {'an' if what[0] in 'aeiou' else 'a'} {what} is a string, not {name!r:.200}"
        )


_NAME_WORDS = 4
_NOT_A_PROMPT = (
    "instructions= takes the forms of answer that the agent knows, as a list of Instruction(name, description, schema), not {}: "
    "what the model is told goes to system_prompt=, or in parts to role=, goal= and capabilities="
)


def own_templates(**texts: object) -> dict[str, str]:
    """Return the templates in `texts` that are not empty, by name. They replace the templates of an agent's protocol.

    Raises:
        ConfigurationError: A template is not a str.
    """
    for name, text in texts.items():
        if not isinstance(text, str):
            raise ConfigurationError(f"{name}_prompt= must be a template, as a string, not {text!r:.200}")
    return {name: text for name, text in texts.items() if isinstance(text, str) and text}


def check_stage(protocol: Protocol, stage: object) -> None:
    """Check that a protocol has a stage of the name `stage`.

    Raises:
        ConfigurationError: The protocol has no such stage; the text lists its stages.
    """
    if stage not in protocol.stages:
        remedy = (
            did_you_mean_or_list(str(stage), protocol.stages)
            if protocol.stages
            else "it has no stages, so omit stage="
        )
        raise ConfigurationError(f"the protocol {protocol.name!r} has no stage {stage!r}: {remedy}")


def check_system_prompt(text: object, *, body: str) -> None:
    """Raise `ConfigurationError` if the argument `system_prompt=` of an agent is invalid. `body` is the argument `body=`.

    Raises:
        ConfigurationError: The prompt is not a str, is empty, or is combined with `body=`.
    """
    if text is None:
        return
    if not isinstance(text, str) or not text.strip():
        raise ConfigurationError(f"system_prompt= takes a string that is not empty, not {text!r:.200}")
    if body:
        raise ConfigurationError(
            "system_prompt= replaces the whole prompt, so body= cannot be combined with it: put the text of body= into system_prompt="
        )


def check_routes(routes: object, *, kind: type) -> None:
    """Check that the argument `routes=` maps actions to agents of the class `kind`.

    Raises:
        ConfigurationError: `routes` is not a mapping, or the target of a route is not such an agent.
    """
    if not isinstance(routes, Mapping):
        raise ConfigurationError(f"routes= takes {{action: agent}}, not {type(routes).__name__}")
    for action, target in routes.items():
        if not isinstance(target, kind):
            raise ConfigurationError(f"routes[{action!r}] must be an Agent, got {target!r}")


def check_each(name: str, values: Iterable[object], *, kind: type) -> None:
    """Check that all items of the argument `name` are of the class `kind`.

    Raises:
        ConfigurationError: An item is of another class; the text shows the first one.
    """
    for value in values:
        if not isinstance(value, kind):
            raise ConfigurationError(f"{name}= takes {kind.__name__} objects, not {value!r}")


def check_reducers(reducers: object) -> None:
    """Check the argument `reducers=`: functions that combine the old and the new value of a key of the state.

    Raises:
        ConfigurationError: The value is not a mapping of keys to functions.
    """
    if reducers is None:
        return
    if not isinstance(reducers, Mapping) or not all(callable(reducer) for reducer in reducers.values()):
        raise ConfigurationError(f"reducers= takes {{key: function of (old, new)}}, not {reducers!r:.200}")


def check_call_rule(name: str, value: object) -> None:
    """Raise `ConfigurationError` if the argument `name` is neither None nor a sync function of (call, tool, context).

    Raises:
        ConfigurationError: The value is not a sync function, or does not take three arguments.
    """
    if value is None:
        return
    if not is_sync_callable(value) or isinstance(value, type):
        raise ConfigurationError(
            f"{name}= must be a sync function of (call, tool, context), not {value!r:.200}; "
            "use @tool(approval=True) for one tool, and approval=lambda call, tool, context: True for all"
        )
    if not _accepts_positional(value, 3):
        raise ConfigurationError(
            f"{name}= is called with three arguments (call, tool, context), which {value!r:.200} does not accept: write "
            f"{name}=lambda call, tool, context: ..."
        )


def _accepts_positional(function: Any, count: int) -> bool:
    """Return True if a function can be called with `count` positional arguments, or has no signature."""
    try:
        signature = inspect.signature(function)
    except ValueError:  # of some builtins
        return True
    try:
        signature.bind(*[None] * count)
    except TypeError:
        return False
    return True


def check_call(*, temperature: object, max_tokens: int | None) -> None:
    """Check the options `temperature=` and `max_tokens=` of a model call. None is accepted.

    Raises:
        ConfigurationError: An option is invalid; the text names it.
    """
    if temperature is not None and not isinstance(temperature, int | float):
        raise ConfigurationError(f"temperature= must be a number, not {temperature!r}")
    if max_tokens is not None:
        at_least_one("max_tokens", max_tokens)


def joined_text(name: str, value: object) -> str:
    """Return the text of the argument `name`: a string, or a list of strings joined with commas.

    Raises:
        ConfigurationError: The value is neither a string nor a list of strings.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
        return ", ".join(value)
    raise ConfigurationError(f"{name}= must be a string or a list of strings, not {type(value).__name__}")
