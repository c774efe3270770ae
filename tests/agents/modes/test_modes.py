"""Modes: the numbered cases of the AppAgent specification, and further guarantees."""

import json
import logging

import attrs
import pytest
import trio

from actgent import (
    BareAgent,
    ConfigurationError,
    DuplicateTool,
    EnvelopedTool,
    Mode,
    ModeChangeRejected,
    Modes,
    PlanAgent,
    ReActAgent,
    RouterAgent,
    ScriptedLLM,
    Sender,
    SimpleAgent,
    StepsAgent,
    ToolCall,
    ToolContext,
    UsageError,
    delegation_tools,
    open_runtime,
    tool,
)
from actgent.errors import UserCodeExit
from actgent.journal.in_memory_journal import MemoryJournal
from actgent.journal.session_export_and_fork import (
    load_sessions,
    read_sessions,
    save_sessions,
    with_new_ids,
    write_sessions,
)
from actgent.modes.mode import ACT, INTEGRATION, ONBOARDING, PLAN
from actgent.protocols.prompt_rendering import fill_template

ran = []


@pytest.fixture(autouse=True)
def _forget():
    ran.clear()


@tool
async def get_time() -> str:
    """Tell the time."""
    await trio.lowlevel.checkpoint()
    ran.append("get_time")
    return "noon"


@tool
async def deploy(target: str = "here") -> str:
    """Deploy."""
    await trio.lowlevel.checkpoint()
    ran.append(f"deploy {target}")
    return f"deployed {target}"


@tool
async def configure() -> str:
    """Configure."""
    await trio.lowlevel.checkpoint()
    ran.append("configure")
    return "configured"


TOOLS = [get_time, deploy, configure]


def modes_with(*own, **options):
    options.setdefault("universal", [get_time])
    options.setdefault("configuration", [configure])
    return Modes(*own, **options)


def agent_of(*answers, kind=BareAgent, modes=None, tools=TOOLS, **options):
    llm = ScriptedLLM(answers[0] if len(answers) == 1 and callable(answers[0]) else list(answers))
    modes = modes_with() if modes is None else modes
    return kind("app", llm=llm, tools=tools, modes=modes, **options), llm


async def talk(session, *texts):
    """Send messages and return the tool results."""
    results = []
    session.on_tool_result(results.append)
    for text in texts:
        await session.chat(text)
        await session.wait_idle()
    return results


def notes_of(session):
    return [m.text for m in session.history if m.sender.kind == "system"]


async def in_mode(mode, *calls, **options):
    """Return the results of calls that one answer makes in a mode."""
    agent, _ = agent_of(list(calls), "done", **options)
    async with agent:
        session = await agent.create_session("ada")
        await session.set_mode(mode, by="admin")
        return await talk(session, "go")


# --- 1 to 6: which tools a mode has -----------------------------------------------------------


async def test_case_1_plan_rejects_execution_and_the_run_continues():
    agent, llm = agent_of([ToolCall("deploy", {})], "I cannot do that here.")
    async with agent:
        session = await agent.create_session("ada")
        await session.set_mode("plan")
        (result,) = await talk(session, "deploy it")
    assert ran == []
    assert result.status == "error"
    assert result.error == (
        "Tool 'deploy' is not available in plan mode. Please use tools that are appropriate for the current mode."
    )
    assert session.history[-1].text == "I cannot do that here."
    assert len(llm.chats) == 2


async def test_case_2_integration_has_every_tool():
    agent, _ = agent_of("ok")
    assert all(agent.modes.allows("integration", each) for each in agent.tools)
    results = await in_mode(
        "integration", *(ToolCall(name, {}) for name in ("get_time", "deploy", "configure"))
    )
    assert [result.status for result in results] == ["success"] * 3


async def test_case_3_onboarding_has_configuration_and_universal():
    results = await in_mode(
        "onboarding", *(ToolCall(name, {}) for name in ("get_time", "configure", "deploy"))
    )
    assert [result.status for result in results] == ["success", "success", "error"]
    assert "deploy" in results[2].error
    assert "onboarding" in results[2].error


async def test_case_4_act_has_execution_but_neither_configuration_nor_tests():
    calls = [
        ToolCall("deploy", {}),
        ToolCall("configure", {}),
        ToolCall("save_settings", {"settings": {}}),
        ToolCall("record_test_result", {"tool_name": "x", "status": "passed"}),
    ]
    results = await in_mode("act", *calls)
    assert [result.status for result in results] == ["success", "error", "error", "error"]
    assert ran == ["deploy here"]


@pytest.mark.parametrize("mode", ["onboarding", "integration", "plan", "act"])
async def test_case_5_universal_tools_and_set_mode_are_never_locked_out(mode):
    target = "act" if mode == "plan" else "plan"
    calls = [
        ToolCall("get_time", {}),
        ToolCall("get_agent_state", {}),
        ToolCall("set_mode", {"mode": target}),
    ]
    results = await in_mode(mode, *calls, modes=modes_with(agent_may=["plan", "act"]))
    assert [result.status for result in results] == ["success"] * 3


async def test_case_6_prompt_and_tools_are_the_same_in_every_mode():
    agent, llm = agent_of(lambda _: "ok")
    async with agent:
        session = await agent.create_session("ada")
        for mode in ("onboarding", "integration", "plan", "act"):
            await session.set_mode(mode, by="admin")
            await talk(session, "hello")
    assert len({chat.system for chat in llm.chats}) == 1
    assert len({repr(chat.tools) for chat in llm.chats}) == 1
    system = llm.chats[0].system
    assert all(mode in system for mode in ("onboarding", "integration", "plan", "act"))
    assert all(name in system for name in ("get_time", "deploy", "configure", "set_mode", "save_settings"))


# --- 7 to 11: switching -----------------------------------------------------------------------


async def test_case_7_one_message_before_the_next_model_call():
    agent, llm = agent_of(
        [ToolCall("set_mode", {"mode": "act"})], "ready", modes=modes_with(agent_may=["act"])
    )
    async with agent:
        session = await agent.create_session("ada")
        (result,) = await talk(session, "start")
        assert json.loads(result.content) == {
            "success": True,
            "previous_mode": "onboarding",
            "current_mode": "act",
        }
        assert session.mode == "act"
        (note,) = notes_of(session)
        assert "act" in note
        assert "onboarding" in note
    assert [m.sender.kind for m in session.history] == ["user", "assistant", "tool", "system", "assistant"]
    message = llm.chats[1].messages[-1]
    assert message.role == "user"
    assert message.parts[0].text == f"<system>\n{note}\n</system>"


async def test_case_7_by_the_api_between_turns_and_within_one():
    """Between turns the notice is appended at once. Within a turn it follows the results of the open calls."""
    session = None

    @tool
    async def wait() -> str:
        """Wait."""
        await session.set_mode("act", by="user")
        return "waited"

    agent, llm = agent_of(
        [ToolCall("wait", {}), ToolCall("get_time", {})],
        "ok",
        tools=[wait, get_time],
        modes=modes_with(configuration=[], universal=["wait", "get_time"]),
    )
    async with agent:
        session = await agent.create_session("ada")
        change = await session.set_mode("plan", by="user", reason="first think")
        assert (change.previous, change.current, change.by, change.reason) == (
            "onboarding",
            "plan",
            "user",
            "first think",
        )
        assert len(notes_of(session)) == 1
        await talk(session, "go")
        assert [c.current for c in session.mode_changes] == ["plan", "act"]
    kinds = [m.sender.kind for m in session.history]
    assert kinds == ["system", "user", "assistant", "tool", "system", "assistant"]
    assert "plan" in llm.chats[0].messages[0].parts[0].text


async def test_case_8_the_same_mode_again_is_no_change():
    agent, _ = agent_of([ToolCall("set_mode", {"mode": "plan"})], "ok", "ok")
    async with agent:
        session = await agent.create_session("ada")
        await session.set_mode("plan")
        change = await session.set_mode("plan")
        assert (change.previous, change.current, change.number) == ("plan", "plan", 0)
        (result,) = await talk(session, "again")
        assert json.loads(result.content)["success"] is True
        assert len(notes_of(session)) == len(session.mode_changes) == 1


async def test_case_9_an_unknown_mode_changes_nothing():
    agent, _ = agent_of([ToolCall("set_mode", {"mode": "xyz"})], "ok")
    async with agent:
        session = await agent.create_session("ada")
        with pytest.raises(ValueError, match="Invalid mode specified: 'xyz'"):
            await session.set_mode("xyz", by="admin", force=True)
        (result,) = await talk(session, "go")
        assert "Invalid mode specified" in result.error
        assert session.mode == "onboarding"
        assert dict(session.state) == {}
        assert notes_of(session) == []


async def test_case_10_an_unknown_stored_mode_becomes_plan(caplog):
    async with MemoryJournal().running() as journal:
        async with open_runtime(journal=journal) as runtime:
            agent, _ = agent_of("ok", modes=modes_with(Mode("xyz")))
            await runtime.start(agent)
            session = await agent.create_session("ada", session_id="s")
            await session.set_mode("xyz")
            fresh = await agent.create_session("bob", session_id="t")
            assert fresh.mode == "onboarding"
        with caplog.at_level(logging.WARNING):
            async with open_runtime(journal=journal) as runtime:
                agent, _ = agent_of([ToolCall("deploy", {})], "no", "hello")
                await runtime.start(agent)
                session = await agent.open_session("s")
                assert session.mode == "plan"
                (result,) = await talk(session, "deploy")
                assert "plan mode" in result.error
                fresh = await agent.open_session("t")
                assert fresh.mode == "onboarding"
    assert ["xyz" in record.message for record in caplog.records] == [True]
    assert ["xyz" in note for note in notes_of(session)] == [True, True]
    assert "plan" in notes_of(session)[1]


async def test_case_10_modes_of_your_own_have_a_first_one():
    modes = Modes(Mode("draft"), Mode("publish", [deploy]), ready=False)
    assert (modes.initial, modes.fallback) == ("draft", "draft")
    agent, _ = agent_of("ok", modes=modes, tools=[])
    ours = ["set_mode", "get_mode_info", "get_agent_state", "read_result"]
    assert [each.name for each in agent.tools] == ["deploy", *ours]


@pytest.mark.parametrize(("target", "expected"), [("act", ["deploy here"]), ("plan", [])])
async def test_case_11_what_follows_in_one_batch_is_judged_by_the_new_mode(target, expected):
    start = "plan" if target == "act" else "act"
    calls = [ToolCall("set_mode", {"mode": target}), ToolCall("deploy", {})]
    results = await in_mode(start, *calls, modes=modes_with(agent_may=["act", "plan"]))
    assert ran == expected
    assert results[1].status == ("success" if expected else "error")
    if not expected:
        assert "plan mode" in results[1].error


async def test_case_11_what_comes_before_is_judged_by_the_old_mode():
    calls = [
        ToolCall("deploy", {"target": "a"}),
        ToolCall("set_mode", {"mode": "plan"}),
        ToolCall("deploy", {"target": "b"}),
    ]
    results = await in_mode("act", *calls)
    assert ran == ["deploy a"]
    assert [result.status for result in results] == ["success", "success", "error"]


# --- 12: custom modes -------------------------------------------------------------------------


async def test_case_12_a_mode_of_your_own():
    review = Mode(
        "review",
        ["deploy"],
        message="Now in {{mode}}, {{by}} said; {{unknown}} stays.",
        prompt="read what was written.",
        who=("user",),
    )
    bare = Mode("bare")
    agent, llm = agent_of(
        [ToolCall("deploy", {}), ToolCall("configure", {})], "ok", modes=modes_with(review, bare)
    )
    async with agent:
        session = await agent.create_session("ada")
        with pytest.raises(ModeChangeRejected, match="admin may not switch"):
            await session.set_mode("review", by="admin")
        await session.set_mode("review", by="user")
        results = await talk(session, "go")
        assert [result.status for result in results] == ["success", "error"]
        assert notes_of(session) == ["Now in review, user said; {{unknown}} stays."]
    assert "review: read what was written." in llm.chats[0].system
    results = await in_mode("bare", ToolCall("get_time", {}), ToolCall("deploy", {}), modes=modes_with(bare))
    assert [result.status for result in results] == ["success", "error"]


async def test_case_12_a_rule_of_your_own_sees_the_call():
    cautious = Mode("cautious", lambda call, *_: call.arguments.get("target") == "test")
    calls = [ToolCall("deploy", {"target": "test"}), ToolCall("deploy", {"target": "live"})]
    results = await in_mode("cautious", *calls, modes=modes_with(cautious))
    assert [result.status for result in results] == ["success", "error"]
    assert ran == ["deploy test"]


async def test_case_12_a_ready_mode_can_be_replaced():
    mine = attrs.evolve(PLAN, tools=("deploy",), who=("admin",))
    results = await in_mode("plan", ToolCall("deploy", {}), modes=modes_with(mine))
    assert [result.status for result in results] == ["success"]


# --- 13 to 15: state, onboarding, integration -------------------------------------------------


async def test_case_13_the_state_is_read_by_a_tool_and_never_in_the_prompt():
    agent, llm = agent_of(
        [ToolCall("save_settings", {"settings": {"language": "Esperanto"}})],
        [
            ToolCall("get_agent_state", {}),
            ToolCall("get_agent_config", {}),
            ToolCall("get_mode_info", {}),
            ToolCall("get_integration_state", {}),
        ],
        "ok",
    )
    async with agent:
        session = await agent.create_session("ada")
        session.state.dispatch(("extra", [1, 2]))
        results = await talk(session, "set up")
    state, config, info, integration = (json.loads(result.content) for result in results[1:])
    assert state == {
        "mode": "onboarding",
        "settings": {"language": "Esperanto"},
        "is_onboarding_complete": False,
        "is_integration_complete": False,
        "onboarding_step": "settings",
        "extra": [1, 2],
    }
    assert config["missing"] == ["operators", "admin_contact"]
    assert info["mode"] == "onboarding"
    assert "deploy" not in info["tools"]
    assert "configure" in info["tools"]
    assert info["modes"]["act"]["who_may"] == ["admin", "user"]
    assert integration == {
        "test_results": {},
        "tool_documentation": {},
        "test_report": None,
        "is_integration_complete": False,
    }
    assert all("Esperanto" not in chat.system for chat in llm.chats)


async def test_case_14_onboarding_is_complete_when_nothing_is_missing():
    modes = modes_with(required_settings=["language", "admin_contact"])
    agent, _ = agent_of(
        [ToolCall("check_existing_config", {})],
        [ToolCall("save_settings", {"settings": {"language": "en", "admin_contact": ""}})],
        [ToolCall("complete_onboarding", {})],
        [ToolCall("save_settings", {"settings": {"admin_contact": "a@b"}})],
        [ToolCall("complete_onboarding", {})],
        [ToolCall("get_onboarding_status", {})],
        "ok",
        modes=modes,
    )
    async with agent:
        session = await agent.create_session("ada")
        results = await talk(session, "set up")
    check, _, refused, _, done, status = results
    assert json.loads(check.content)["exists"] is False
    assert refused.status == "error"
    assert refused.error.endswith("missing: admin_contact")
    assert json.loads(done.content) == {"is_onboarding_complete": True, "recommended_mode": "integration"}
    assert json.loads(status.content) == {"step": "complete", "is_complete": True, "missing": []}
    assert session.state["is_onboarding_complete"] is True
    assert session.state["transition_recommendation"]["to_mode"] == "integration"


async def test_case_15_a_report_counts_and_a_failure_holds_the_completion():
    def result(name, status):
        return ToolCall("record_test_result", {"tool_name": name, "status": status})

    answers = [
        [ToolCall("complete_integration_testing", {})],
        [result("a", "passed"), result("b", "failed"), result("c", "skipped")],
        [ToolCall("generate_test_report", {})],
        [ToolCall("complete_integration_testing", {})],
        [ToolCall("complete_integration_testing", {"force": True})],
        "ok",
    ]
    agent, _ = agent_of(*answers)
    async with agent:
        session = await agent.create_session("ada")
        await session.set_mode("integration", by="admin")
        nothing, *_, report, refused, forced = await talk(session, "test")
    assert "no result" in nothing.error
    assert json.loads(report.content) == {
        "total": 3,
        "passed": 1,
        "failed": 1,
        "skipped": 1,
        "failed_tools": ["b"],
    }
    assert refused.status == "error"
    assert "1 of 3 failed (b)" in refused.error
    assert forced.status == "success"
    assert session.state["is_integration_complete"] is True


async def test_case_15_a_skip_alone_is_no_obstacle_and_a_repetition_counts_once():
    def result(name, status):
        return ToolCall("record_test_result", {"tool_name": name, "status": status})

    agent, _ = agent_of(
        [result("a", "failed"), result("b", "skipped")],
        [
            result("a", "passed"),
            ToolCall("document_tool", {"tool_name": "a", "description": "does a", "status": "working"}),
        ],
        [ToolCall("complete_integration_testing", {})],
        "ok",
    )
    async with agent:
        session = await agent.create_session("ada")
        await session.set_mode("integration", by="admin")
        results = await talk(session, "test")
    assert results[-1].status == "success"
    assert session.state["test_report"]["total"] == 2
    assert session.state["tool_documentation"]["a"]["status"] == "working"


async def test_suggestions_let_the_user_say_something_else():
    """An "Other..." action is added unless one exists. The value of an action defaults to its label."""
    asked = [{"label": "Deploy", "primary": True}, {"label": "Wait", "value": "later"}]
    own = [*asked, {"label": "Say more", "is_other": True}]
    agent, _ = agent_of(
        [ToolCall("suggest_actions", {"actions": actions}) for actions in (asked, own, [])], "choose"
    )
    async with agent:
        session = await agent.create_session("ada")
        shown, with_own, empty = await talk(session, "what now?")
    actions = json.loads(shown.content)["actions"]
    assert [(a["label"], a["value"], a["primary"], a["is_other"]) for a in actions] == [
        ("Deploy", "Deploy", True, False),
        ("Wait", "later", False, False),
        ("Other...", "other", False, True),
    ]
    assert len(json.loads(with_own.content)["actions"]) == 3
    assert empty.status == "error"


# --- 18 to 21 ---------------------------------------------------------------------------------


async def test_case_18_errors_and_results_in_one_form():
    @tool
    async def broken() -> str:
        """Break."""
        raise RuntimeError("no such luck")

    agent, _ = agent_of(
        [ToolCall("broken", {}), ToolCall("get_time", {})],
        "I go on.",
        tools=[EnvelopedTool(broken), EnvelopedTool(get_time)],
        modes=Modes(universal=["broken", "get_time"]),
    )
    async with agent:
        session = await agent.create_session("ada")
        failed, good = await talk(session, "go")
    error_text = json.loads(failed.error)
    assert failed.status == "error"
    assert error_text["success"] is False
    assert error_text["error"]["message"] == "RuntimeError: no such luck"
    assert error_text["error"]["details"] == "RuntimeError"
    assert error_text["error"]["timestamp"].endswith("+00:00")
    assert json.loads(good.content) == {"success": True, "result": "noon"}
    assert session.history[-1].text == "I go on."


async def test_case_19_concurrent_changes_of_different_keys_are_both_there():
    @tool
    async def slow(key: str, context: ToolContext) -> str:
        """Write a key after a while."""
        await trio.lowlevel.checkpoint()
        context.state.dispatch((key, True))
        await trio.lowlevel.checkpoint()
        return key

    calls = [
        ToolCall("slow", {"key": "a"}),
        ToolCall("slow", {"key": "b"}),
        ToolCall("save_settings", {"settings": {"language": "en"}}),
        ToolCall("save_settings", {"settings": {"operators": ["ada"]}}),
    ]
    agent, _ = agent_of(calls, "ok", tools=[slow], modes=Modes(universal=[slow]))
    async with agent:
        session = await agent.create_session("ada")
        await talk(session, "go")
        assert session.state["a"] is session.state["b"] is True
        assert session.state["settings"] == {"language": "en", "operators": ["ada"]}


def test_case_21_a_template_leaves_what_it_does_not_know():
    assert fill_template("hi {{a}} {{b}}", {"a": 1}) == "hi 1 {{b}}"
    assert fill_template("{{a}}", {"a": "{{b}}", "b": 2}) == "{{b}}"


# --- permitted switches -----------------------------------------------------------------------


async def test_the_model_cannot_switch_itself_to_act_unless_allowed():
    """The model may switch to act only if `agent_may` allows it."""
    answers = ([ToolCall("set_mode", {"mode": "act"}), ToolCall("deploy", {})], "no")
    agent, _ = agent_of(*answers)
    async with agent:
        session = await agent.create_session("ada")
        refused, denied = await talk(session, "go")
        assert "agent may not switch from onboarding to act (allowed: admin, user)" in refused.error
        assert denied.status == "error"
        assert session.mode == "onboarding"
        assert notes_of(session) == []
    assert ran == []
    agent, _ = agent_of(*answers, modes=modes_with(agent_may=["act"]))
    async with agent:
        session = await agent.create_session("ada")
        assert [result.status for result in await talk(session, "go")] == ["success", "success"]


async def test_a_table_defines_permitted_mode_switches():
    """A mode in `transitions` permits only the listed switches. Switches from other modes depend on the target mode."""
    modes = modes_with(
        transitions={"onboarding": {"integration": ["admin"]}, "integration": {"plan": ["user", "admin"]}}
    )
    agent, _ = agent_of("ok", modes=modes)
    async with agent:
        session = await agent.create_session("ada")
        for mode, by in (("act", "user"), ("act", "admin"), ("integration", "user")):
            with pytest.raises(ModeChangeRejected) as refused:
                await session.set_mode(mode, by=by)
            assert (refused.value.mode, refused.value.requested) == ("onboarding", mode)
        await session.set_mode("integration", by="admin")
        await session.set_mode("plan")
        await session.set_mode("act")
        assert [change.current for change in session.mode_changes] == ["integration", "plan", "act"]


async def test_a_mode_guard_rejects_unless_an_admin_forces():
    requests = []

    def guard(state, start, end):
        requests.append((start, end))
        if end == "act" and not state.get("is_onboarding_complete"):
            return "onboarding is not complete"
        return None

    agent, _ = agent_of(
        [ToolCall("set_mode", {"mode": "act"})], "no", modes=modes_with(guard=guard, agent_may=["act"])
    )
    async with agent:
        session = await agent.create_session("ada")
        with pytest.raises(ModeChangeRejected, match="onboarding is not complete"):
            await session.set_mode("act")
        with pytest.raises(ModeChangeRejected, match="only an admin may force"):
            await session.set_mode("act", by="user", force=True)
        (result,) = await talk(session, "go")
        assert "onboarding is not complete" in result.error
        assert session.mode == "onboarding"
        assert dict(session.state) == {}
        await session.set_mode("act", by="admin", force=True)
        assert session.mode == "act"
        session.state.dispatch(("is_onboarding_complete", True))
        await session.set_mode("plan")
        await session.set_mode("act")
    assert requests == [("onboarding", "act"), ("onboarding", "act"), ("act", "plan"), ("plan", "act")]


async def test_a_failing_mode_guard_keeps_the_agent_running():
    """A guard that raises `SystemExit` gives `UserCodeExit`. The mode is unchanged and the session stays usable."""

    def leave(state, start, end):
        raise SystemExit(2)

    agent, _ = agent_of("hello", modes=modes_with(guard=leave))
    async with agent:
        session = await agent.create_session("ada")
        with pytest.raises(UserCodeExit):
            await session.set_mode("act")
        assert session.mode == "onboarding"
        assert str(await agent.run("hi", session=session)) == "hello"


@pytest.mark.parametrize(
    ("text", "mode"),
    [
        ("integrate", "integration"),
        (" Integration ", "integration"),
        ("plan", "plan"),
        ("planning", "plan"),
        ("act", "act"),
        ("ACTION", "act"),
        ("review", "review"),
        ("act now", "onboarding"),
        ("/act", "onboarding"),
    ],
)
async def test_single_words_switch_the_mode_if_enabled(text, mode):
    agent, _ = agent_of("ok", modes=modes_with(Mode("review"), commands=True))
    async with agent:
        session = await agent.create_session("ada", text)
        await session.wait_idle()
        assert session.mode == mode
        assert len(notes_of(session)) == (mode != "onboarding")
        await session.chat("hello")
        await session.wait_idle()
        assert session.mode == mode


async def test_mode_words_are_plain_text_by_default():
    agent, _ = agent_of(lambda _: "ok")
    async with agent:
        session = await agent.create_session("ada", "act")
        await session.wait_idle()
        assert session.mode == "onboarding"
    agent, llm = agent_of(lambda _: "ok", modes=modes_with(attrs.evolve(ACT, who=("admin",)), commands=True))
    async with agent:
        session = await agent.create_session("ada", "act")
        await session.wait_idle()
        await session.chat("plan", "agent")
        await session.wait_idle()
        assert session.mode == "onboarding"
    assert "user may not switch from onboarding to act" in llm.chats[0].messages[-1].parts[0].text
    assert not any("may not" in part.text for message in llm.chats[1].messages for part in message.parts)


@pytest.mark.parametrize(
    ("build", "answer"),
    [
        (lambda: Modes(Mode("a"), Mode("a")), "two modes are named 'a'"),
        (lambda: Mode("two words"), "letters"),
        (lambda: Mode(""), "letters"),
        (lambda: Mode("a", who=("boss",)), "boss"),
        (lambda: Mode("a", "deploy"), "list"),
        (lambda: Modes(universal=deploy), "list"),
        (lambda: Modes(initial="xyz"), "initial"),
        (lambda: Modes(agent_may=["xyz"]), "agent_may"),
        (lambda: Modes(transitions={"plan": {"xyz": ["user"]}}), "xyz"),
        (lambda: Modes(ready=False), "custom modes"),
        (lambda: Modes("plan"), "Mode objects"),
        (lambda: agent_of("ok", modes=Modes(execution=["deplyo"])), "deplyo"),
        (lambda: agent_of("ok", modes="plan"), "modes="),
    ],
)
def test_invalid_mode_configuration_is_rejected(build, answer):
    with pytest.raises(ConfigurationError, match=answer):
        build()


def test_set_mode_cannot_be_replaced():
    @tool(name="set_mode")
    async def mine() -> str:
        """Mine."""
        return ""

    with pytest.raises(DuplicateTool):
        agent_of("ok", tools=[*TOOLS, mine])


async def test_without_modes_there_are_none():
    async with BareAgent("a", llm=ScriptedLLM(["ok"])) as agent:
        session = await agent.create_session("ada")
        with pytest.raises(UsageError, match="no modes"):
            await session.set_mode("act")
        with pytest.raises(UsageError, match="no modes"):
            assert session.mode
        assert session.mode_changes == ()


def test_predefined_modes_equal_the_specification():
    modes = Modes()
    assert [mode.name for mode in modes] == [m.name for m in (ONBOARDING, INTEGRATION, PLAN, ACT)]
    assert (modes.initial, modes.fallback) == ("onboarding", "plan")


REACT_CALL = (
    '{"primary_action": {"response_purpose": "TOOL_INVOCATION", '
    '"response_content": {"name": "deploy", "parameters": {}}}}'
)


# --- other features ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "call"),
    [
        (
            BareAgent,
            '{"tool_calls": [{"type": "function", "function": {"name": "deploy", "arguments": "{}"}}]}',
        ),
        (SimpleAgent, '{"messageType": "TOOL_INVOCATION", "content": {"name": "deploy", "parameters": {}}}'),
        (ReActAgent, REACT_CALL),
        (StepsAgent, '{"tool_thought": "t", "tool_calls": [{"tool_name": "deploy", "parameters": {}}]}'),
        (RouterAgent, ToolCall("deploy", {})),
        (PlanAgent, ToolCall("deploy", {})),
    ],
)
async def test_the_rule_holds_in_every_protocol(kind, call):
    """The mode allows or rejects a call in each protocol, for calls as text and native calls."""
    for mode, expected in (("plan", "error"), ("act", "success")):
        answers = iter([call if isinstance(call, str) else [call]])
        agent, _ = agent_of(lambda _, answers=answers: next(answers, "done"), kind=kind)
        async with agent:
            session = await agent.create_session("ada")
            await session.set_mode(mode)
            results = await talk(session, "deploy")
            assert [(result.tool_name, result.status) for result in results] == [("deploy", expected)], kind
    assert ran == ["deploy here"]


async def test_modes_and_enabled_tools_have_to_agree():
    agent, _ = agent_of(
        [
            ToolCall("deploy", {}),
            ToolCall("get_time", {}),
            ToolCall("set_mode", {"mode": "plan"}),
            ToolCall("get_time", {}),
        ],
        "done",
        "done",
        kind=PlanAgent,
    )
    async with agent:
        session = await agent.create_session("ada")
        agent.configure(session, tools=["deploy"])
        results = await talk(session, "go")
    assert [result.status for result in results] == ["error", "error", "success", "error"]
    assert "onboarding mode" in results[0].error
    assert "not enabled" in results[1].error
    assert ran == []


async def test_delegated_agents_have_separate_modes():
    """A mode switch of the parent does not change the child, and vice versa."""
    inner, _ = agent_of(
        lambda chat: "done" if chat.messages[-1].role == "tool" else [ToolCall("deploy", {})],
        modes=modes_with(initial="plan"),
    )
    inner.name = "worker"
    work = inner.as_tool("work", "Give work.")
    outer = BareAgent(
        "lead",
        llm=ScriptedLLM([[ToolCall("work", {"task": "deploy"})], "ok"]),
        tools=[work, deploy],
        modes=Modes(initial="act"),
    )
    received = []
    inner.on_session(received.append)
    async with outer:
        session = await outer.create_session("ada")
        results = await talk(session, "go")
        assert session.mode == "act"
    assert [result.status for result in results] == ["success"]
    assert ran == []
    assert [child.mode for child in received] == ["plan"]
    assert "not available in plan mode" in received[0].history[2].tool_results[0].error


async def test_sessions_have_separate_modes():
    agent, _ = agent_of(lambda _: "ok")
    async with agent:
        one = await agent.create_session("ada")
        two = await agent.create_session("bob")
        await one.set_mode("act")
        assert (one.mode, two.mode) == ("act", "onboarding")


# --- 20: export and import --------------------------------------------------------------------


@pytest.mark.parametrize("keeps_id", [True, False])
async def test_case_20_a_session_travels_with_its_mode(tmp_path, keeps_id):
    """An imported session has the same state, messages and mode, with the same or a new id."""
    async with MemoryJournal().running() as journal:
        async with open_runtime(journal=journal) as runtime:
            agent, _ = agent_of("ok")
            await runtime.start(agent)
            session = await agent.create_session("ada", session_id="s")
            await session.set_mode("plan")
            session.state.dispatch(("found", [1, 2]))
            await talk(session, "hello")
            await session.set_mode("act")
            history, state, changes = session.history, dict(session.state), session.mode_changes
        save_sessions(tmp_path / "case", await read_sessions(journal))
    sessions = load_sessions(tmp_path / "case")
    if not keeps_id:
        sessions = with_new_ids(sessions)
    (session_id,) = [each.session_id for each in sessions]
    assert (session_id == "s") is keeps_id
    async with MemoryJournal().running() as journal:
        await journal.acquire()
        await write_sessions(journal, sessions)
        async with open_runtime(journal=journal) as runtime:
            agent, llm = agent_of([ToolCall("deploy", {})], "done")
            await runtime.start(agent)
            session = await agent.open_session(session_id)
            assert (dict(session.state), session.mode_changes, session.mode) == (state, changes, "act")
            assert [m.text for m in session.history] == [m.text for m in history]
            assert {m.session_id for m in session.history} == {session_id}
            (result,) = await talk(session, "go on")
            assert result.status == "success"
            assert len(notes_of(session)) == 2
            assert len(llm.chats[0].messages) == len(history) + 1


@pytest.mark.parametrize("keeps_id", [True, False])
async def test_case_20_a_session_travels_with_its_schedules(tmp_path, keeps_id, autojump_clock):
    """A schedule of an imported session fires once at its time, with the same or a new session id."""
    async with MemoryJournal().running() as journal:
        async with open_runtime(journal=journal) as runtime:
            agent, _ = agent_of("ok")
            await runtime.start(agent)
            session = await agent.create_session("ada", session_id="s")
            await session.schedule("water the plants", after=3600)
            gone = await session.schedule("feed the cat", after=1800)
            await session.unschedule(gone.id)
            before = session.schedules
        save_sessions(tmp_path / "case", await read_sessions(journal))
    sessions = load_sessions(tmp_path / "case")
    if not keeps_id:
        sessions = with_new_ids(sessions)
    (session_id,) = [each.session_id for each in sessions]
    async with MemoryJournal().running() as journal:
        await journal.acquire()
        await write_sessions(journal, sessions)
        async with open_runtime(journal=journal) as runtime:
            agent, _ = agent_of("watered")
            await runtime.start(agent)
            session = await agent.open_session(session_id)
            (found,) = session.schedules
            assert (found.description, found.at) == ("water the plants", before[0].at)
            await trio.sleep(3000)
            assert not session.history
            await trio.sleep(700)
            await session.wait_idle()
            assert [m.text for m in session.history] == [
                "Running scheduled task: water the plants",
                "watered",
            ]
            assert not session.schedules


@pytest.mark.parametrize("wait", [True, False])
async def test_another_agents_task_is_no_command_of_a_user(autojump_clock, wait):
    """A message of an agent is not a mode command, in a task or in a session. A message of a user is."""
    task = {"agent": "worker", "task": "act", "wait": wait}
    lead = BareAgent(
        "lead",
        llm=ScriptedLLM(
            lambda chat: ToolCall("delegate_to_agent", task) if len(chat.messages) == 1 else "ok"
        ),
        tools=delegation_tools(),
    )
    worker = BareAgent(
        "worker", llm=ScriptedLLM(lambda _: "done"), modes=Modes(initial="plan", commands=True)
    )
    ended = []

    @worker.on_session
    def watch(session):
        session.on_conversation(lambda _: ended.append(session.mode))

    async with open_runtime() as runtime:
        for agent in (lead, worker):
            await runtime.start(agent)
        session = await lead.create_session("ada", "go")
        await session.wait_idle()
        await trio.sleep(1)
        assert ended == ["plan"]
        told = await worker.create_session(Sender("lead", "agent"))
        for sender, mode in ((None, "plan"), (Sender("ada"), "act")):
            await told.chat("act", sender)
            await told.wait_idle()
            assert told.mode == mode


async def test_get_agent_state_returns_the_real_mode():
    """`get_agent_state` returns the real mode, although a state key `mode` has another value."""
    agent = BareAgent(
        "a", llm=ScriptedLLM([ToolCall("get_agent_state", {}), "ok"]), modes=Modes(initial="plan")
    )
    async with agent:
        session = await agent.create_session("ada")
        session.state.dispatch(("mode", "act"))
        results = []
        session.on_tool_result(results.append)
        await session.chat("look")
        await session.wait_idle()
    assert json.loads(results[0].content)["mode"] == "plan"
