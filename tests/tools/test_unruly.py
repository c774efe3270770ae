"""Exceptions whose classes redefine how exceptions are handled: each is the outcome of the call that raised it, and of nothing else."""

import pytest
import trio

from actgent import BareAgent, ScriptedLLM, ToolCall, tool
from actgent.errors import ForeignExit
from actgent.support.foreign import failure_of, leaves, tamed


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


def test_what_stands_for_one_says_what_it_was():
    """Its class, its words, and what its class redefines; an ordinary one, whatever its words do, stays itself."""
    error = failure_of(unruly("with_traceback"), "tool", "t")
    assert isinstance(error, ForeignExit)
    assert (error.kind, error.redefined) == ("Unruly", "with_traceback")
    assert "mine" in str(error)
    for name in ("__str__", "__eq__", "__hash__", "__reduce__"):
        assert tamed(kept := unruly(name)) is kept
    assert tamed(kept := OSError(2, "missing")) is kept
    assert [type(leaf) for leaf in leaves(grouped(""))] == [ValueError, ForeignExit]


@pytest.mark.parametrize("name", ["exceptions", "split", "subgroup"])
def test_words_of_groups_are_for_others_to_use(name):
    """An exception that is no group may have a field or a method that is called so, and stays itself."""
    members = {"__slots__": (name,)} if name == "exceptions" else {name: refuse}
    kept = type("Failed", (ValueError,), members)("mine")
    assert tamed(kept) is kept
    group = type("Group", (ExceptionGroup,), {name: refuse})("mine", [kept])
    assert isinstance(tamed(group), ForeignExit)


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
                failure_of(error, "tool", "t")


@pytest.mark.parametrize("name", ["exceptions", "split", "subgroup", "with_traceback"])
async def test_a_keyboard_interrupt_comes_out_of_such_a_group(name):
    """It ends the program as it would without the class."""
    group = type("Group", (BaseExceptionGroup,), {name: refuse})
    with pytest.raises(KeyboardInterrupt):
        failure_of(group("mine", [KeyboardInterrupt()]), "tool", "t")
