"""Exceptions whose classes redefine special methods: each is the outcome of only the call that raised it."""

import pytest
import trio

from actgent import BareAgent, ScriptedLLM, ToolCall, tool
from actgent.errors import UserCodeExit
from actgent.support.user_code_calls import convert_user_error, leaves, safe_exception


def refuse(*_, **__):
    """Raise an error in place of the redefined method."""
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
    """A metaclass that rejects all attribute access."""

    def __getattribute__(cls, name):
        raise RuntimeError("not for you")


def unruly(name, base=Exception):
    """Return an exception whose class redefines a special method."""
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
async def test_unusual_exception_of_a_tool_ends_only_its_call(is_sync, make, name):
    """With and without a thread, the model gets the error, and this call and the next call end."""

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
async def test_unusual_exception_of_a_model_fails_the_turn(name):
    """The turn fails, and the session continues."""

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
    """The replacement has the class, the text and the redefined name. An ordinary exception is not replaced."""
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
    """An exception that is not a group can have an attribute with such a name, and is not replaced."""
    members = {"__slots__": (name,)} if name == "exceptions" else {name: refuse}
    kept = type("Failed", (ValueError,), members)("mine")
    assert safe_exception(kept) is kept
    group = type("Group", (ExceptionGroup,), {name: refuse})("mine", [kept])
    assert isinstance(safe_exception(group), UserCodeExit)


@pytest.mark.parametrize("name", ["with_traceback", "__class__", "__getattribute__", "__cause__"])
async def test_cancellation_precedes_an_unusual_exception(name):
    """A cancelled call remains cancelled, whatever exception its cleanup raises."""
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
    """KeyboardInterrupt ends the program, also from an unusual group."""
    group = type("Group", (BaseExceptionGroup,), {name: refuse})
    with pytest.raises(KeyboardInterrupt):
        convert_user_error(group("mine", [KeyboardInterrupt()]), "tool", "t")
