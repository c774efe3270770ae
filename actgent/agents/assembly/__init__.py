"""How an agent at work is put together from its parts, each given those below it."""
