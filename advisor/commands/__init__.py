"""The commands of ``advisor``: each file has the options of a command and the call that does its work."""
