"""Modes: what an agent may use and is told in one state of its work, and how it changes from one to another."""
