"""All actions, decisions and changes of the state are logged.

Document: Production Considerations, Monitoring and Debugging (Comprehensive Logging, Debug Mode).
"""

import contextlib
import io
import json

from actgent import ScriptedLLM, run_agent_sync


def lookup(state, args):
    """Look up the depth of a lake in metres."""
    return ("depth", 1642)


decisions = [
    {"action": "plan", "params": {"steps": ["look up the lake"]}, "reasoning": "a plan first"},
    {"action": "execute", "params": {"tool": "lookup", "args": {"name": "Baikal"}}, "reasoning": "now look"},
    {"action": "evaluate", "params": {"achieved": True, "answer": "1642 m"}, "reasoning": "it is known"},
]
script = [json.dumps(each) for each in decisions]
lines = []
run_agent_sync("How deep?", ScriptedLLM(script), tools={"lookup": lookup}, verbose=lines.append)
log = "\n".join(lines)
for part in (
    "plan",
    "a plan first",
    "execute",
    "now look",
    "lookup",
    "Baikal",
    "depth",
    "1642",
    "evaluate",
    "it is known",
):
    assert part in log, (part, log)
shown = io.StringIO()
with contextlib.redirect_stderr(shown):
    run_agent_sync("How deep?", ScriptedLLM(script), tools={"lookup": lookup}, verbose=True)
assert "now look" in shown.getvalue()
