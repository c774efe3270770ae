"""What a conversation at the terminal needs: a line to type in, commands, attachments, and how answers are shown."""
