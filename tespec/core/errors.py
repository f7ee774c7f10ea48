"""Exceptions other than bugs: mistakes that the user can fix, and preemption by a scheduler."""

import re


def one_line(text: str) -> str:
    r"""Put `text` on one line, with control characters and other invisible ones escaped.

    >>> print(one_line("two\nlines \x1b"))
    two lines \x1b
    """
    if not text.isprintable():
        letters = re.sub(r"\s*\n\s*", " ", text).strip()
        text = "".join(
            letter if letter.isprintable() else letter.encode("unicode_escape").decode()
            for letter in letters
        )
    return text.strip()


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


def require(condition: object, where: object, what: str, remedy: str) -> None:
    """Raise a `UserError` of the other arguments unless `condition` is true."""
    if not condition:
        raise UserError(where, what, remedy)


class Preempted(KeyboardInterrupt):
    """A run stopped by a scheduler's signal, with its state saved; commands exit with code 75."""
