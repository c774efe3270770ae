"""Tools of the integration mode: record the test results of other tools, and complete the integration."""

from collections import Counter
from collections.abc import Mapping
from typing import Any, Literal

from actgent.errors import ToolError
from actgent.state.session_state import Pair
from actgent.tools.function_tool import tool
from actgent.tools.tool_interface import Tool, ToolContext

TestStatus = Literal["passed", "failed", "skipped"]
ToolState = Literal["working", "issues", "unknown"]


def integration_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the test results, documentation, last report and completion of the tool tests from a session's state."""
    return {
        "test_results": state.get("test_results", {}),
        "tool_documentation": state.get("tool_documentation", {}),
        "test_report": state.get("test_report"),
        "is_integration_complete": state.get("is_integration_complete", False),
    }


def report_of(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers of tools that passed, failed and were skipped, by the last result of each tool."""
    results: Mapping[str, Any] = state.get("test_results", {})
    counts = Counter(result["status"] for result in results.values())
    return {
        "total": len(results),
        **{status: counts[status] for status in ("passed", "failed", "skipped")},
        "failed_tools": sorted(name for name, result in results.items() if result["status"] == "failed"),
    }


def integration_tools() -> list[Tool]:
    """Return the tools that record and evaluate a session's test results."""
    return [record_test_result, document_tool, generate_test_report, complete_integration_testing]


@tool(thread=False, effect="idempotent")
def record_test_result(  # noqa: D417 - the model does not pass the context
    tool_name: str, status: TestStatus, context: ToolContext, details: str = ""
) -> dict[str, Any]:
    """Record how the test of a tool ended; a later result takes the place of an earlier one.

    Args:
        tool_name: The tool that was tested.
        status: How it ended.
        details: Evidence of the check.
    """
    result = {"status": status, "details": details}
    _put(context, "test_results", tool_name, result)
    return {"recorded": tool_name, **result}


@tool(thread=False, effect="idempotent")
def document_tool(  # noqa: D417 - the model does not pass the context
    tool_name: str, description: str, context: ToolContext, status: ToolState = "unknown", notes: str = ""
) -> dict[str, Any]:
    """Record the documentation of a tool and its state.

    Args:
        tool_name: Name of the tool.
        description: Purpose of the tool.
        status: State of the tool.
        notes: Hints for its use.
    """
    _put(
        context,
        "tool_documentation",
        tool_name,
        {"description": description, "status": status, "notes": notes},
    )
    return {"documented": tool_name, "status": status}


@tool(thread=False, effect="idempotent")
def generate_test_report(context: ToolContext) -> dict[str, Any]:
    """Count the results: passed, failed, skipped."""
    report = report_of(context.state)
    context.state.dispatch(("test_report", report), once=context.idempotency_key)
    return report


@tool(thread=False, effect="idempotent")
def complete_integration_testing(context: ToolContext, force: bool = False) -> dict[str, Any]:  # noqa: D417, FBT001, FBT002 - the model passes it by name
    """Mark the tools as tested. Rejected if no tool was tested or a tool failed.

    Args:
        force: Mark them as tested in spite of missing or failed tests.
    """
    report = report_of(context.state)
    if not force and (reason := _incomplete_reason(report)):
        raise ToolError(f"integration testing is not complete: {reason}")
    recommended = {
        "from_mode": "integration",
        "to_mode": "plan",
        "reason": "the tools are tested",
        "warnings": [f"{name} failed" for name in report["failed_tools"]],
    }
    changes = [
        ("test_report", report),
        ("is_integration_complete", True),
        ("transition_recommendation", recommended),
    ]
    context.state.dispatch(changes, once=context.idempotency_key)
    return {"is_integration_complete": True, "report": report, "recommended_mode": "plan"}


def _incomplete_reason(report: Mapping[str, Any]) -> str:
    if report["failed"]:
        return f"{report['failed']} of {report['total']} failed ({', '.join(report['failed_tools'])})"
    return "" if report["total"] else "no result was recorded"


def _put(context: ToolContext, key: str, name: str, value: Mapping[str, Any]) -> None:
    """Set one entry of a mapping in the state; concurrent changes of other entries are kept."""

    def put(state: Mapping[str, Any]) -> Pair:
        return key, {**state.get(key, {}), name: value}

    context.state.dispatch(put, once=context.idempotency_key)
