"""History processors for `Agent(memory=...)`: each function returns the messages of the history that the model gets."""
