"""Exceptions that are no defects: a mistake that a user can mend, and a run that was asked to make room."""

from __future__ import annotations

import re


def one_line(text: str) -> str:
    """`text` on one line, as it can be shown anywhere.

    Line breaks and the blanks around them become single spaces; what would drive a terminal, or turn the direction of
    writing, becomes a replacement character.
    """
    folded = re.sub(r"\s*[\r\n\v\f\x1c-\x1e\x85\u2028\u2029]\s*", " ", text).strip()
    return re.sub(r"[\x00-\x08\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", "\ufffd", folded)


class UserError(Exception):
    """A mistake in files, settings or arguments; command lines print it in one line and exit with code 2.

    Args:
        where: the file, folder or setting the message is about.
        what: what is wrong with it.
        remedy: what to do about it.

    Attributes:
        where, what, remedy: as given, `where` as text.
    """

    def __init__(self, where: object, what: str, remedy: str) -> None:
        super().__init__(one_line(f"{where}: {what}; {remedy}"))
        self.where, self.what, self.remedy = str(where), what, remedy

    def __reduce__(self) -> tuple[type[UserError], tuple[str, str, str]]:
        """Worker processes send them."""
        return UserError, (self.where, self.what, self.remedy)


class Preempted(KeyboardInterrupt):
    """A run stopped because a scheduler asked for it, after saving; command lines exit with code 75."""
