"""People's door: the commands."""
