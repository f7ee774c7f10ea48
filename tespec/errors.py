"""The one exception that stands for a mistake a user can mend."""

from __future__ import annotations


class UserError(Exception):
    """A mistake in files, settings or arguments; command lines print it in one line and exit with code 2.

    Args:
        where: the file, folder or setting the message is about.
        what: what is wrong with it.
        remedy: what to do about it.
    """

    def __init__(self, where: object, what: str, remedy: str) -> None:
        super().__init__(f"{where}: {what}; {remedy}")
