"""Commands about journals: looking, replaying, keeping, and what a new version makes of them."""
