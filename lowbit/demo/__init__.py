"""`lowbit demo`: `command` is the command and its table, `steps` the commands that it runs side by side."""
