"""What a command tells its user instead of a traceback."""

from __future__ import annotations


class CommandError(Exception):
    """A fault in clear words: one line on stderr, then the exit code."""

    exit_code = 1


class UsageError(CommandError):
    """What was asked for cannot be: a missing file, an unknown model, a bad key."""

    exit_code = 2
