"""The commands of ``advisor``: each file has what a command does with its options, and what it prints."""
