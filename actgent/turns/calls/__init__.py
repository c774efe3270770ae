"""Model calls and tool calls of a turn: budgets, streaming, progress, approvals and context-window fitting."""
