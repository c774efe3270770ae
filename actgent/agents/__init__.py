"""An actor that talks to a model: agents, their sessions, and the one pipeline between them."""
