"""One turn of one session: remember, ask, read, act, reply. Knows neither other sessions nor the runtime."""
