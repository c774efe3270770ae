"""Interactive conversation in a terminal: line editor, slash commands, attachments, approvals and output views."""
