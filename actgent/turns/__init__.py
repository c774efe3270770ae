"""Processing of one message of a session, called a turn: record the message, call the model, run tools, deliver the reply."""
