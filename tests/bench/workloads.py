"""The workloads of the benchmark: their sizes and bars."""

from typing import Literal

import attrs

Kind = Literal["ratio", "value", "scaled"]
"""A bar on the ratio to the floor, on the figure itself, or on the figure as the calibrated machine would show it."""


@attrs.frozen
class Bar:
    """The maximum of one figure."""

    figure: str
    limit: float
    kind: Kind = "ratio"


@attrs.frozen
class Workload:
    """One workload: a function of this name in `floor` and in `framework`."""

    key: str
    function: str
    title: str
    size: int
    quick: int
    bars: tuple[Bar, ...] = ()
    is_virtual: bool = False
    """True if the clock skips idle time."""


WORKLOADS = (
    Workload(
        "W1",
        "hop",
        "an ask from one actor to another",
        100_000,
        5_000,
        (Bar("hop_us", 3), Bar("tell_us", 9.4)),
    ),
    # 9.4 is 2.5 times pykka, and 3.2 is autogen-agentchat, both in November 2026.
    Workload("W2", "turns", "a turn with an instant model", 2_000, 500, (Bar("turn_us", 2.3),)),
    Workload(
        "W3",
        "growing_history",
        "500 turns in one session",
        500,
        500,
        (Bar("growth", 1.3, "value"), Bar("first_us", 3.2), Bar("last_us", 4), Bar("rss_turn", 2)),
    ),
    Workload("W4", "tool_loop", "a turn with one tool call", 1_000, 300, (Bar("turn_us", 3.2),)),
    Workload(
        "W5",
        "fan_out",
        "10,000 sessions at once, model takes 100 ms",
        10_000,
        1_000,
        (Bar("wall_s", 1.1), Bar("turn_us", 1.5), Bar("rss_each", 1), Bar("p99_s", 1)),
    ),
    Workload(
        "W6",
        "idle",
        "memory of an idle session and agent",
        5_000,
        1_000,
        (
            Bar("session_bytes", 4_096, "value"),
            Bar("agent_bytes", 4_096, "value"),
            Bar("agent_us", 60, "scaled"),
            Bar("used_agent_bytes", 12_288, "value"),
        ),
        is_virtual=True,
    ),
    Workload(
        "W7",
        "durable",
        "durable turns in 100 sessions, and in one",
        2_000,
        500,
        (
            Bar("cpu_ratio", 2.5, "value"),
            Bar("commits_turn", 0.1, "value"),
            Bar("single_ratio", 1.6, "value"),
            Bar("single_us", 500, "scaled"),
            Bar("created_ratio", 1.6, "value"),
        ),
    ),
    Workload(
        "W8",
        "start",
        "import actgent and run a first agent",
        15,
        5,
        # autogen-core and 50 ms more took 2.3 times the floor in November 2026.
        (Bar("first_agent_s", 2.3), Bar("modules", 300, "value"), Bar("rss_mb", 45, "value")),
    ),
    Workload("W9", "streaming", "one chunk of a streamed answer", 1_000, 1_000, (Bar("chunk_us", 2),)),
    Workload(
        "JSON",
        "json_streaming",
        "a streamed JSON answer of 1 MB",
        1_000_000,
        100_000,
        (Bar("growth", 1.5, "value"),),
    ),
    Workload(
        "TREE",
        "tree",
        "a turn in a session with 10,000 child sessions",
        10_000,
        1_000,
        (Bar("growth", 1.2, "value"),),
    ),
    Workload("URGENT", "urgent", "an URGENT message ends a stream", 200, 50, (Bar("p99_ms", 50, "scaled"),)),
    Workload(
        "FOLDER", "folder", "read a folder with 100 instructions", 100, 20, (Bar("first_ms", 150, "scaled"),)
    ),
    Workload(
        "RESUME",
        "recover",
        "open 10,000 records, resume 100 sessions, write 800 KB",
        10_000,
        1_000,
        (
            Bar("session_ms", 200, "scaled"),
            Bar("state_ms", 200, "scaled"),
            Bar("resume_s", 2, "scaled"),
            Bar("journal_mb", 1.6, "value"),
        ),
    ),
    Workload(
        "LOOPS",
        "loops",
        "a step with the protocols steps, plan and goal, relative to react",
        100,
        20,
        (Bar("steps_ratio", 1.5, "value"), Bar("plan_ratio", 1.5, "value"), Bar("goal_ratio", 1.5, "value")),
    ),
    Workload(
        "PORTAL",
        "carry_over",
        "a turn through a portal, relative to one on trio",
        2_000,
        300,
        (Bar("sync_us", 150, "scaled"), Bar("asyncio_us", 150, "scaled")),
    ),
    Workload(
        "TRACED",
        "traced",
        "a turn with telemetry, relative to one without",
        5_000,
        1_000,
        (Bar("api_us", 60, "scaled"), Bar("sampled_us", 100, "scaled"), Bar("all_us", 200, "scaled")),
    ),
    Workload(
        "ADAPTED",
        "adapted",
        "a turn with a model without the base class, relative to one with it",
        5_000,
        500,
        (Bar("object_us", 5, "scaled"), Bar("function_us", 5, "scaled")),
    ),
    Workload(
        "LIMITS",
        "limited",
        "a turn with a tool and all shared limits, relative to one without limits",
        1_000,
        300,
        (Bar("limits_ratio", 1.5, "value"),),
    ),
    Workload(
        "LIMITER",
        "granted",
        "500 sessions share a provider's rate limit",
        500,
        200,
        (
            Bar("refused_percent", 1, "value"),
            Bar("unused_percent", 5, "value"),
            Bar("urgent_calls", 2, "value"),
        ),
        is_virtual=True,
    ),
    Workload(
        "TIMERS",
        "timers",
        "100,000 evicted sessions with one schedule each, after a restart",
        100_000,
        2_000,
        (Bar("rss_mb", 100, "value"), Bar("late_s", 1, "scaled")),
    ),
    Workload(
        "WAITS",
        "waits",
        "100,000 evicted sessions with one open approval each, after a restart",
        100_000,
        2_000,
        (Bar("rss_mb", 100, "value"), Bar("late_s", 1, "scaled")),
    ),
    Workload(
        "ASLEEP",
        "asleep",
        "1,000,000 sessions in a journal, 1,000 of them in memory",
        1_000_000,
        50_000,
        (Bar("rss_ratio", 1.5, "value"),),
    ),
    Workload(
        "MEMORY",
        "lasting",
        "store and recall 100,000 memories of one owner",
        100_000,
        5_000,
        (
            Bar("recall_ms", 20, "scaled"),
            Bar("recall_p99_ms", 100, "scaled"),
            Bar("remember_us", 1_000, "scaled"),
        ),
    ),
    Workload(
        "LONG",
        "long_sessions",
        "a session of 50,000 turns, running and after a restart",
        50_000,
        5_000,
        (
            Bar("turn_ratio", 1.5, "value"),
            Bar("open_s", 1, "scaled"),
            Bar("rss_mb", 100, "value"),
            *(
                bar
                for view in ("sliding", "summarizing")
                for bar in (
                    Bar(f"{view}_beside_ratio", 1.5, "value"),
                    Bar(f"{view}_open_s", 1, "scaled"),
                    Bar(f"{view}_rss_mb", 100, "value"),
                )
            ),
        ),
    ),
    Workload(
        "BACKGROUND",
        "beside",
        "messages while other conversations are summarized and consolidated",
        600,
        200,
        (Bar("added_ms", 50, "scaled"),),
    ),
    Workload("CANCEL", "cancel", "cancel 10,000 running sessions", 10_000, 1_000, (Bar("wall_s", 2),)),
)
BY_KEY = {workload.key: workload for workload in WORKLOADS}
