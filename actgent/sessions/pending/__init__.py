"""Pending work of sessions and callers: approvals, schedules, tasks, and the outcomes of turns."""
