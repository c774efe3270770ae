"""Table of frequent mistakes: wrong attribute and argument names by class and function, with the right ones."""

from collections.abc import Mapping

from .unknown_name_hints import with_hints

_OF_AGENTS = {
    "chat": "write session = await agent.create_session(owner), then await session.chat(text); "
    "or await agent.run(text) for one answer",
    **dict.fromkeys(
        ("on_conversation", "on_reply", "on_response"), "attach it to a session: session.on_conversation(fn)"
    ),
    **dict.fromkeys(
        ("on_exception", "on_error", "on_failure"), "attach it to a session: session.on_exception(fn)"
    ),
    **dict.fromkeys(
        ("on_token", "on_tool_result", "on_event", "on_routing", "on_approval"), "attach it to a session"
    ),
    **dict.fromkeys(
        ("invoke", "ask", "generate", "complete", "arun", "kickoff", "query"), "write await agent.run(text)"
    ),
    **dict.fromkeys(
        ("start", "open", "close", "aclose", "stop"), "an agent lives as long as its block: async with agent:"
    ),
    **dict.fromkeys(("session", "new_session"), "write await agent.create_session(owner)"),
    "get_or_create_session": "write await agent.ensure_session(owner, session_id)",
    "add_tool": "write Agent(..., tools=[...]), or agent.tools.add(tool)",
    **dict.fromkeys(
        ("history", "messages", "state", "memory", "usage"),
        "each session has its own: session.history, session.state, session.usage",
    ),
    "sessions": "a runtime lists them: await runtime.sessions(agent=agent.name)",
    **dict.fromkeys(("llm", "model"), "it is given when the agent is made: Agent(name, llm=...)"),
    "instructions": "read agent.system_prompt, the whole prompt, or agent.profile",
}
hints_for_agents = with_hints(
    _OF_AGENTS,
    keywords={
        "name": "write it first, e.g. BareAgent('clerk', llm=...)",
        "model": "write llm='openai:gpt-5.2'",
        "llm": "write llm='openai:gpt-5.2' or llm='anthropic:MODEL'; without a key, llm=ScriptedLLM(['Hello.']) answers",
        "system": "write system_prompt=",
        **dict.fromkeys(
            ("instruction", "system_message", "backstory", "description"),
            "write system_prompt=, or role= and goal=",
        ),
        **dict.fromkeys(("functions", "toolkits"), "write tools=[...]"),
        **dict.fromkeys(
            ("output_type", "output_schema", "response_format", "result_type", "response_model"),
            "write output=",
        ),
        **dict.fromkeys(("max_turns", "max_iterations", "max_steps"), "write limits=Limits(model_calls=...)"),
        **dict.fromkeys(
            ("timeout", "max_retries", "retries"),
            "write limits=Limits(model_timeout=...), or give it to the model's client",
        ),
        **dict.fromkeys(
            ("handoffs", "agents"),
            "write tools=[handoff(to=agent)], tools=[agent.as_tool()], or RouterAgent(routes={action: agent})",
        ),
        **dict.fromkeys(
            ("api_key", "base_url"), "give it to the client: llm=OpenAI(model, api_key=..., base_url=...)"
        ),
        "journal": "a runtime has it: async with open_runtime(journal='sqlite:///agents.db') as runtime, await runtime.start(agent)",
        **dict.fromkeys(
            ("quotas", "retention", "telemetry", "supervision"),
            "a runtime has it: open_runtime(quotas=..., retention=..., telemetry=..., supervision=...)",
        ),
        "logging": "write debug=True, or verbose=True",
    },
    methods=dict.fromkeys(("__enter__", "__exit__"), "an agent's block is async: write `async with agent:`"),
)
DISPATCH = "a session's state changes by actions: state.dispatch([(key, value)]), or state.dispatch(lambda state: [(key, value)])"
_OF_SESSIONS = {
    **dict.fromkeys(
        ("on_message", "on_reply", "on_response", "on_answer"), "write session.on_conversation(fn)"
    ),
    **dict.fromkeys(("on_error", "on_failure"), "write session.on_exception(fn)"),
    **dict.fromkeys(("on_tool", "on_tool_call"), "write session.on_tool_result(fn)"),
    **dict.fromkeys(("on_stream", "on_chunk", "on_delta"), "write session.on_token(fn)"),
    **dict.fromkeys(
        ("send", "say", "ask", "post", "tell", "send_message", "message"), "write await session.chat(text)"
    ),
    "run": "write await agent.run(text, session=session)",
    "stream": "write async with agent.stream(text, session=session) as events",
    **dict.fromkeys(("close", "end", "delete"), "write await session.aclose()"),
    **dict.fromkeys(("conversation", "transcript"), "read session.history"),
    **dict.fromkeys(("cancel", "stop", "abort"), "write await session.interrupt()"),
    **dict.fromkeys(("wait", "join"), "write await session.wait_idle()"),
    **dict.fromkeys(
        ("fork", "branch", "copy", "rewind"), "write await runtime.fork(session.id, to=RECORD_NUMBER)"
    ),
    **dict.fromkeys(
        ("approve", "reject", "decide"), "write await session.answer(approval, Approve()) or Reject()"
    ),
    **dict.fromkeys(("user", "user_id"), "read session.owner"),
    "on": "write session.on_conversation(fn), on_event, on_tool_result, on_exception, on_routing, on_token or on_approval",
}
hints_for_sessions = with_hints(
    _OF_SESSIONS,
    methods=dict.fromkeys(
        ("__enter__", "__exit__", "__aenter__", "__aexit__"),
        "a session is not a block: it lasts until await session.aclose(), or until its agent's block ends",
    ),
    setters={"state": DISPATCH},
)


def _awaitless(names: Mapping[str, str]) -> dict[str, str]:
    """Return the hints of the asynchronous API, by wrong name, reworded for the synchronous API.

    `await` is removed, and `aclose` becomes `close`.
    """
    return {
        name: text.replace("async with", "with").replace("await ", "").replace("aclose", "close")
        for name, text in names.items()
    }


_OF_PORTAL_AGENTS = _OF_AGENTS | dict.fromkeys(
    ("start", "open", "close", "aclose", "stop"),
    "an agent that was started in a portal lives as long as that",
)
hints_for_portal_agents = with_hints(_awaitless(_OF_PORTAL_AGENTS))
hints_for_asyncio_agents = with_hints(_OF_PORTAL_AGENTS)
hints_for_portal_sessions = with_hints(_awaitless(_OF_SESSIONS))
hints_for_asyncio_sessions = with_hints(
    {
        name: text.replace("read session.history", "read await session.history()")
        for name, text in _OF_SESSIONS.items()
    }
)
hints_for_states = with_hints(
    {
        **dict.fromkeys(("update", "set", "put", "setdefault", "pop"), DISPATCH),
        **dict.fromkeys(("value", "values_", "data", "to_dict", "dict"), "it is a mapping: read dict(state)"),
    },
    methods=dict.fromkeys(("__setitem__", "__delitem__"), DISPATCH),
)
hints_for_limits = with_hints(
    keywords={
        **dict.fromkeys(
            ("max_tokens", "total_tokens"), "write tokens=; the longest answer is max_tokens= of the agent"
        ),
        **dict.fromkeys(("max_turns", "max_iterations", "requests", "turns", "calls"), "write model_calls="),
        **dict.fromkeys(("retries", "max_retries", "repairs"), "write output_retries="),
        **dict.fromkeys(
            ("timeout", "deadline"), "write seconds= for a turn, model_timeout= or tool_timeout="
        ),
        **dict.fromkeys(("max_cost", "usd", "budget"), "write cost="),
    }
)
_MEDIUM_OF_FILE = (
    "write Image(media_type='image/png', data=pathlib.Path('picture.png').read_bytes()), or url= for data="
)
hints_for_media = with_hints(
    dict.fromkeys(
        ("from_path", "from_file", "from_bytes", "from_url", "from_base64", "open", "load"), _MEDIUM_OF_FILE
    ),
    keywords={
        "*": f"{_MEDIUM_OF_FILE}; File takes the same",
        **dict.fromkeys(
            ("path", "file", "filename"), "write data=pathlib.Path(...).read_bytes() and media_type="
        ),
        **dict.fromkeys(("mime_type", "type", "content_type"), "write media_type="),
        **dict.fromkeys(("content", "bytes"), "write data="),
    },
)
hints_for_replies = with_hints(
    {
        **dict.fromkeys(
            ("content", "message", "output_text", "response", "answer", "raw"), "read reply.text"
        ),
        **dict.fromkeys(
            (
                "messages",
                "new_messages",
                "all_messages",
                "history",
                "to_input_list",
                "tool_calls",
                "tool_results",
                "steps",
            ),
            "read session.history; for one answer: session = await agent.create_session(owner), then "
            "await agent.run(text, session=session)",
        ),
        **dict.fromkeys(("cost", "price", "total_cost", "usd"), "read reply.usage.cost, in US dollars"),
        **dict.fromkeys(
            ("tokens", "total_tokens"), "read reply.usage.input_tokens and reply.usage.output_tokens"
        ),
        **dict.fromkeys(
            (
                "final_output",
                "structured_output",
                "output",
                "result",
                "value",
                "parsed",
                "json",
                "model_dump",
            ),
            "read reply.data, the value of an agent or run with output=, or reply.text",
        ),
    },
    methods={"__getitem__": "a reply is not a dict or a list: read reply.text, or reply.data with output="},
)
hints_for_message_ids = with_hints(
    dict.fromkeys(
        ("text", "content", "data", "reply", "response", "output", "result", "message", "id"),
        "chat() returns the id of the message, and the reply is passed to session.on_conversation(fn); to wait for the "
        "reply, write reply = await agent.run(text, session=session)",
    )
)
hints_for_tokens = with_hints(dict.fromkeys(("content", "delta", "token", "data"), "read token.text"))
hints_for_failures = with_hints(
    dict.fromkeys(
        ("message", "exception", "reason", "text"), "read failure.error, the exception, and failure.kind"
    )
)
hints_for_results = with_hints(
    {
        **dict.fromkeys(
            ("result", "output", "text", "data", "value"), "read result.content, or result.error"
        ),
        "name": "read result.tool_name",
    }
)
hints_for_usage = with_hints(
    {
        **dict.fromkeys(("prompt_tokens", "request_tokens"), "read usage.input_tokens"),
        **dict.fromkeys(("completion_tokens", "response_tokens"), "read usage.output_tokens"),
        **dict.fromkeys(
            ("total_tokens", "tokens"),
            "add usage.input_tokens and usage.output_tokens; usage.total has those of children, too",
        ),
        **dict.fromkeys(("total_cost", "price", "usd"), "read usage.cost, or usage.total.cost"),
    }
)
hints_for_tool_calls = with_hints(
    dict.fromkeys(("args", "input", "parameters", "kwargs"), "read call.arguments")
)
hints_for_quotas = with_hints(
    keywords={
        **dict.fromkeys(("daily", "per_day"), "write day=Limits(...)"),
        **dict.fromkeys(("monthly", "per_month"), "write month=Limits(...)"),
        **dict.fromkeys(
            ("cost", "tokens", "model_calls", "limits"), "write day=Limits(...) or month=Limits(...)"
        ),
        **dict.fromkeys(("timezone", "tz"), "write zone='Europe/Oslo'"),
        "*": "write Quotas(day=Limits(...)) or month=",
    }
)
_START = "give it an agent: agent = await runtime.start(BareAgent(...)), then "
hints_for_runtimes = with_hints(
    {
        **dict.fromkeys(("run", "ask", "invoke", "stream", "chat"), f"{_START}await agent.run(text)"),
        **dict.fromkeys(
            ("create_session", "ensure_session", "open_session"),
            f"{_START}await agent.create_session(owner), ensure_session(owner, id) or open_session(id)",
        ),
        **dict.fromkeys(
            ("add", "register", "add_agent", "start_agent", "launch"), "write await runtime.start(agent)"
        ),
        **dict.fromkeys(
            ("close", "aclose", "shutdown"),
            "a runtime ends with its block: async with open_runtime() as runtime:",
        ),
        "agent": "write runtime.agents[name]; runtime.find(words) looks for what they can do",
    }
)
OF_RUNTIMES = {
    "*": "pass each argument by its name: open_runtime(journal='sqlite:///agents.db'). Start agents inside the block: "
    "await runtime.start(agent)",
    **dict.fromkeys(("agents", "agent"), "start them inside the block: await runtime.start(agent)"),
    **dict.fromkeys(
        ("db", "database", "url", "path", "store", "storage", "checkpointer", "persist"),
        "write journal='sqlite:///agents.db'",
    ),
    **dict.fromkeys(("limits", "budget"), "write quotas=Quotas(day=Limits(...)); of one agent it is limits="),
}
_IN_THE_AGENT = {
    **dict.fromkeys(
        ("policy", "approval", "access", "protocol", "routes"),
        "it belongs to the agent: write Agent(name, policy=...), Agent(name, protocol=...) and so on",
    ),
    "budget": "write limits=Limits(cost=...), in US dollars",
    **dict.fromkeys(("tools", "functions"), "tools belong to the agent: Agent(name, tools=[...])"),
    "tool_choice": "write it into the model's client: OpenAI(model, extra_body={'tool_choice': ...})",
    **dict.fromkeys(
        ("max_retries", "retries"),
        "write limits=Limits(output_retries=...), or give it to the model's client",
    ),
    **dict.fromkeys(
        ("callbacks", "callback", "hooks", "handlers"),
        "attach handlers to a session: session.on_tool_result(fn), session.on_token(fn), ...",
    ),
    "verbose": "write verbose=True for the agent",
    "debug": "write debug=True for the agent",
}
_SETTINGS = {
    **dict.fromkeys(
        ("model_settings", "generation_config", "config", "run_config"),
        "write temperature=, max_tokens= and model= of this call; other settings belong to the model's client",
    ),
    **dict.fromkeys(
        ("max_turns", "max_iterations", "max_steps", "recursion_limit", "message_limit"),
        "write limits=Limits(model_calls=...)",
    ),
    "usage_limits": "write limits=Limits(tokens=..., cost=..., model_calls=...)",
    **dict.fromkeys(
        ("system_prompt", "instructions", "system", "system_message"), "write prompt=PromptLayer(system=...)"
    ),
    **dict.fromkeys(
        ("output_type", "response_format", "result_type", "output_schema", "response_model"), "write output="
    ),
    **dict.fromkeys(
        ("deps_type", "context", "dependencies", "config_context"), "write deps=, the value for tools"
    ),
}
_CONTENT = {
    **dict.fromkeys(
        ("input", "user_prompt", "message", "text", "query", "question", "task", "user_message"),
        "the message is the first argument and has no name",
    ),
    **dict.fromkeys(
        ("files", "images", "attachments", "media"),
        'put them into the message: ["text", Image(...), File(...)]',
    ),
}
_ONE_SESSION = {
    **dict.fromkeys(("owner", "user", "user_id"), "write session=await agent.create_session(owner)"),
    **dict.fromkeys(
        ("session_id", "thread_id", "conversation_id", "chat_id"),
        "write session=await agent.ensure_session(owner, session_id)",
    ),
    **dict.fromkeys(
        ("message_history", "messages", "history", "chat_history", "memory"),
        "write session=await agent.create_session(owner, history=[...])",
    ),
}
hints_for_policies = with_hints(
    keywords={
        **dict.fromkeys(("mode", "action", "on_violation"), "write violation='ask' or violation='refuse'"),
        "isolate": "write untrusted='isolate'",
    }
)
hints_for_retention = with_hints(
    keywords=dict.fromkeys(
        ("days", "max_age", "ttl", "hours", "age", "keep"),
        "write closed=timedelta(days=30) for closed sessions, idle=timedelta(days=90) for open ones",
    )
)
hints_for_memories = with_hints(
    keywords=dict.fromkeys(
        ("max_messages", "window", "k", "limit", "max_length", "size"),
        "a memory is bounded by tokens: write max_tokens=",
    )
)
OF_RUNS = {
    **dict.fromkeys(("deadline", "wait"), "write timeout=, a number of seconds"),
    "stream": "write async with agent.stream(text) as events",
    **_IN_THE_AGENT,
    **_SETTINGS,
    **_CONTENT,
    **_ONE_SESSION,
}
OF_STREAMS = {
    **OF_RUNS,
    "*": "only the message has no name: stream(text, session=session)",
    "stream": "this call streams already: leave stream= out",
}
OF_NEW_SESSIONS = {
    **_IN_THE_AGENT,
    **_SETTINGS,
    **dict.fromkeys(("user", "user_id"), "the owner is the first argument: create_session(owner)"),
    **dict.fromkeys(("thread_id", "conversation_id", "chat_id", "id"), "write session_id="),
    **dict.fromkeys(("message_history", "messages", "chat_history", "memory"), "write history=[...]"),
    **dict.fromkeys(
        ("input", "message", "text", "user_prompt", "task"),
        "the first message is the second argument: create_session(owner, text)",
    ),
    **dict.fromkeys(
        ("model", "temperature", "max_tokens", "output", "output_type", "response_format"),
        "write it for one call: agent.run(text, session=session, model=..., output=...)",
    ),
    "stream": "write session.on_token(fn), or async with agent.stream(text, session=session) as events",
}
OF_SCHEDULES = {
    **dict.fromkeys(
        ("every", "interval", "repeat"), "write cron=, e.g. cron='*/5 * * * *' for every five minutes"
    ),
    **dict.fromkeys(("delay", "seconds", "timeout", "wait"), "write after=, a number of seconds"),
    **dict.fromkeys(("when", "date", "time", "run_at"), "write at=, a datetime with a time zone"),
    **dict.fromkeys(("timezone", "tz"), "write zone='Europe/Oslo'"),
    **dict.fromkeys(
        ("content", "text", "message", "task"), "the text is the first argument: schedule(text, after=60)"
    ),
    **dict.fromkeys(("id", "name", "schedule_id"), "write key="),
}
OF_CHATS = {
    **_CONTENT,
    "stream": "write session.on_token(fn) before, or async with agent.stream(text, session=session) as events",
    **dict.fromkeys(
        ("role", "user", "user_id", "author", "sender_id", "name"),
        'write sender=, e.g. session.chat(text, "bob")',
    ),
    **dict.fromkeys(
        ("timeout", "wait"), "write enqueue_timeout=, or await agent.run(text, session=session, timeout=...)"
    ),
    **dict.fromkeys(
        ("output", "output_type", "temperature", "max_tokens", "model", "limits", "deps"),
        "write it for one call: await agent.run(text, session=session, ...)",
    ),
    **dict.fromkeys(("on_token", "on_reply", "callback", "callbacks"), "write session.on_token(fn) before"),
    **dict.fromkeys(
        ("session", "session_id", "thread_id"), "remove it, because this session receives the message"
    ),
    "tools": "tools belong to the agent: Agent(name, tools=[...])",
}
_READ = "it is read by `async for`: async for event in events: ..."
hints_for_readers = with_hints(methods=dict.fromkeys(("__iter__", "__next__"), _READ))
_PORTAL_BLOCK = "write `with agent.stream(...) as events: for event in events: ...`"
_ASYNCIO_BLOCK = "write `async with agent.stream(...) as events: async for event in events: ...`"
hints_for_portal_streams = with_hints(
    methods=dict.fromkeys(
        ("__aenter__", "__aexit__", "__aiter__", "__anext__"),
        f"this is the portal of synchronous code: {_PORTAL_BLOCK}",
    )
)
hints_for_asyncio_streams = with_hints(
    methods=dict.fromkeys(
        ("__enter__", "__exit__", "__iter__", "__next__"), f"this is the portal of asyncio: {_ASYNCIO_BLOCK}"
    )
)
hints_for_tools = with_hints(
    keywords={
        **dict.fromkeys(("desc", "doc", "help"), "write description=, or a docstring"),
        **dict.fromkeys(
            ("schema", "args_schema", "input_schema"), "write parameters=, or annotate the function"
        ),
        **dict.fromkeys(("confirm", "requires_approval", "needs_approval"), "write approval=True"),
        **dict.fromkeys(("readonly", "read_only", "pure"), "write effect='pure'"),
    }
)
hints_for_messages = with_hints(
    {
        **dict.fromkeys(("content", "body"), "read message.text, or message.parts"),
        **dict.fromkeys(
            ("role", "author", "name", "source"), "read message.sender.kind, and message.sender.name"
        ),
        "tool_calls": "read message.parts: each ToolCall is one",
    }
)
hints_for_tool_contexts = with_hints(
    {
        **dict.fromkeys(("user", "user_id", "owner_id"), "read context.owner"),
        **dict.fromkeys(("messages", "history", "conversation"), "read context.session.history"),
        **dict.fromkeys(("dispatch", "update"), "write context.state.dispatch([(key, value)])"),
        **dict.fromkeys(("context", "dependencies", "ctx"), "read context.deps, which Agent(deps=...) gives"),
        **dict.fromkeys(("log", "info", "report_progress"), "write context.progress(done, total, text)"),
    }
)
hints_for_builders = with_hints(
    {
        **dict.fromkeys(("model", "with_llm", "with_model"), "write builder.llm('openai:gpt-5.2')"),
        **dict.fromkeys(("system", "with_system_prompt"), "write builder.system_prompt(text), or role(text)"),
        **dict.fromkeys(("tool", "add_tool", "with_tools"), "write builder.tools(first, second)"),
        **dict.fromkeys(("create", "make", "run"), "write agent = builder.build()"),
    }
)
hints_for_clients = with_hints(
    keywords={
        "model": "write the model's name first, as in OpenAI('gpt-5.2') or Anthropic('claude-sonnet-4-5')"
    }
)
hints_for_servers = with_hints(
    keywords={
        "*": "write MCPServer(command='npx', args=['-y', 'SERVER']), or MCPServer(url='https://...')",
        **dict.fromkeys(("cmd", "program", "executable"), "write command="),
        **dict.fromkeys(("endpoint", "address", "host"), "write url="),
        "token": "write headers={'Authorization': 'Bearer ...'}, or oauth=",
    }
)
