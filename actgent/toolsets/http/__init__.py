"""Tools that call APIs over HTTP, and the guard that checks every connection."""
