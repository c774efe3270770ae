"""Commands for servers and clusters."""
