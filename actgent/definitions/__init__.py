"""Agents as folders of text files: reading them, checking them, and making new ones."""
