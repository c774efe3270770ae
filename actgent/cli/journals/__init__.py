"""Commands that read or maintain stored sessions and memories."""
