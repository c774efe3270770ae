"""Agents and their sessions, builders, teams, pipelines and goals: the classes that programs use directly."""
