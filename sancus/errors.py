"""The exceptions that a user is meant to see."""


class UserError(Exception):
    """A mistake of the user, in one line: the bad value, what is allowed, what to do.

    The command line prints it without a traceback and exits with code 2. A bug of ours is never a
    `UserError`: an internal invariant is an `assert`.
    """


class RankError(Exception):
    """A rank of a program's own has failed, or was killed; the message names it. All ranks have ended."""
