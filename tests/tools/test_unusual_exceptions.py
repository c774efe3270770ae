"""Exceptions whose classes redefine how exceptions are handled: each is the outcome of the call that raised it, and of nothing else."""

import pytest
import trio

from actgent import BareAgent, ScriptedLLM, ToolCall, tool
from actgent.errors import UserCodeExit
from actgent.support.user_code_calls import convert_user_error, leaves, safe_exception


def refuse(*_, **__):
    """What the classes here have in place of what they redefine."""
    raise RuntimeError("not for you")


REDEFINED = {
    "with_traceback": refuse,
    "__class__": property(refuse),
    "__traceback__": property(refuse),
    "__getattribute__": refuse,
    "__str__": refuse,
    "__reduce__": refuse,
    "__reduce_ex__": refuse,
    "__eq__": refuse,
    "__hash__": refuse,
    "__cause__": property(refuse),
    "__setattr__": refuse,
}


class Unasked(type):
    """A class that says nothing of itself."""

    def __getattribute__(cls, name):
        raise RuntimeError("not for you")


def unruly(name, base=Exception):
    """An exception of a class that redefines something."""
    if name == "metaclass":
        return Unasked("Unruly", (base,), {})("mine")
    return type("Unruly", (base,), {name: REDEFINED[name]})("mine")


def grouped(_):
    return ExceptionGroup("both", [ValueError("mine"), unruly("__class__")])


def caused(_):
    error = ValueError("mine")
    error.__cause__ = unruly("__class__")
    return error


def quitting(name):
    return unruly(name, BaseException)


RAISED = [
    *((unruly, name) for name in (*REDEFINED, "metaclass")),
    (quitting, "with_traceback"),
    (grouped, ""),
    (caused, ""),
]


@pytest.mark.parametrize("is_sync", [True, False])
@pytest.mark.parametrize(("make", "name"), RAISED)
async def test_a_tool_may_raise_it(is_sync, make, name):
    """In a thread or not, the model reads of it, and both this call and the next have an end."""

    @tool(name="fails")
    def fails_in_thread() -> str:
        """Fail."""
        raise make(name)

    @tool(name="fails")
    async def fails() -> str:
        """Fail."""
        raise make(name)

    def answer(chat):
        last = chat.messages[-1]
        return last.parts[0].text if last.role == "tool" else ToolCall("fails", {})

    llm = ScriptedLLM(answer, keep=0)
    with trio.fail_after(60):
        async with BareAgent("a", llm=llm, tools=[fails_in_thread if is_sync else fails]) as agent:
            session = await agent.create_session("ada")
            for _ in range(2):
                text = (await agent.run("go", session=session)).text
                assert text.startswith("Error: ")
                assert "mine" in text or "Unruly" in text


@pytest.mark.parametrize("name", ["with_traceback", "__class__", "__getattribute__"])
async def test_a_model_in_a_thread_may_raise_it(name):
    """Its turn fails, and the session goes on."""

    def broken(messages):
        if len(messages) < 4:
            raise unruly(name)
        return "well"

    with trio.fail_after(60):
        async with BareAgent("a", llm=broken) as agent:
            session, failures = await agent.create_session("ada"), []
            session.on_exception(failures.append)
            for _ in range(6):
                await session.chat("go")
                await session.wait_idle()
    assert failures
    assert all("Unruly" in str(failure.error) for failure in failures)


def test_replaced_exception_names_the_original():
    """Its class, its words, and what its class redefines; an ordinary one, whatever its words do, stays itself."""
    error = convert_user_error(unruly("with_traceback"), "tool", "t")
    assert isinstance(error, UserCodeExit)
    assert (error.kind, error.redefined) == ("Unruly", "with_traceback")
    assert "mine" in str(error)
    for name in ("__str__", "__eq__", "__hash__", "__reduce__"):
        assert safe_exception(kept := unruly(name)) is kept
    assert safe_exception(kept := OSError(2, "missing")) is kept
    assert [type(leaf) for leaf in leaves(grouped(""))] == [ValueError, UserCodeExit]


@pytest.mark.parametrize("name", ["exceptions", "split", "subgroup"])
def test_exceptions_may_have_attributes_named_like_group_ones(name):
    """An exception that is no group may have a field or a method that is called so, and stays itself."""
    members = {"__slots__": (name,)} if name == "exceptions" else {name: refuse}
    kept = type("Failed", (ValueError,), members)("mine")
    assert safe_exception(kept) is kept
    group = type("Group", (ExceptionGroup,), {name: refuse})("mine", [kept])
    assert isinstance(safe_exception(group), UserCodeExit)


@pytest.mark.parametrize("name", ["with_traceback", "__class__", "__getattribute__", "__cause__"])
async def test_a_cancellation_goes_before_it(name):
    """What is cancelled is cancelled, whatever its clean-up raises."""
    with trio.CancelScope() as scope:
        scope.cancel()
        try:
            try:
                await trio.sleep_forever()
            finally:
                raise unruly(name)
        except BaseException as error:  # noqa: BLE001 - the edge to foreign code
            with pytest.raises(trio.Cancelled):
                convert_user_error(error, "tool", "t")


@pytest.mark.parametrize("name", ["exceptions", "split", "subgroup", "with_traceback"])
async def test_keyboard_interrupt_is_raised_from_a_group(name):
    """It ends the program as it would without the class."""
    group = type("Group", (BaseExceptionGroup,), {name: refuse})
    with pytest.raises(KeyboardInterrupt):
        convert_user_error(group("mine", [KeyboardInterrupt()]), "tool", "t")
