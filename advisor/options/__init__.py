"""The options of the commands: one frozen data class for each command, with shared groups as base classes.

A field is the one place of an option: its type, default and help, its range, and where it has an effect. From it come
the command line (:mod:`advisor.commands.command_line`), the keyword arguments in Python, the refusal of options that
have no effect, and the settings that a run folder keeps.
"""
