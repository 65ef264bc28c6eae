"""Errors that are the user's to fix: one line naming what was found, what was expected and the fix."""


class UsageError(ValueError):
    """A bad request (config, file, checkpoint, data). The command line prints it as one line and exits with status 2."""
