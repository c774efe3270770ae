"""Webhooks: what happens in sessions, told to receivers by signed requests, none lost and each with a stable id."""
