"""Functions of a history, for `Agent(memory=...)`: each returns the messages that the model is shown."""
