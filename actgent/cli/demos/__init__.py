"""`actgent demo`, and scripted models that need no API key."""
