"""Endpoints of the gateway: functions that answer requests, and the table that lists them."""
