"""The commands of ``advisor``, a file each: options in, text out, no logic."""
