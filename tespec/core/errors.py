"""Exceptions other than bugs: mistakes that the user can fix, and preemption by a scheduler."""

import re


def one_line(text: str) -> str:
    """Put `text` on one line, without control characters and marks of the writing direction."""
    folded = re.sub(r"\s*[\r\n\v\f\x1c-\x1e\x85\u2028\u2029]\s*", " ", text).strip()
    return re.sub(r"[\x00-\x08\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", "\ufffd", folded)


class UserError(Exception):
    """A mistake in files, settings or arguments that the user can fix.

    Commands print it in one line and exit with code 2.

    Args:
        where: file, setting or argument.
        what: the problem.
        remedy: what to do.

    >>> print(UserError("--seed x", "not a number", "give an integer"))
    --seed x: not a number; give an integer
    """

    def __init__(self, where: object, what: str, remedy: str) -> None:
        super().__init__(one_line(f"{where}: {what}; {remedy}"))
        self.where = str(where)
        self.what = what
        self.remedy = remedy

    def __reduce__(self) -> tuple[type["UserError"], tuple[str, str, str]]:
        """Make the exception picklable, for worker processes."""
        return type(self), (self.where, self.what, self.remedy)


class Preempted(KeyboardInterrupt):
    """A run stopped by a scheduler's signal, with its state saved; commands exit with code 75."""
