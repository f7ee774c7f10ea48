"""Whether a verdict needs one of its tasks: the same claim, decided again without each of them in turn."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tespec.comparison.claims import VERDICTS, Claim, Finding, Scores, decide, findings
from tespec.comparison.statistics import UNDECIDED


def verdicts_without(claim: Claim, verdict: str, scores: Scores) -> Iterator[tuple[str, Finding, str]]:
    """Tasks without which a claim's verdict would be another: task, the others' pooled effect in points, their verdict.

    Undecided claims have none, nor those that were measured on one task.
    """
    if verdict == VERDICTS[UNDECIDED] or len(claim.tasks) < 2:
        return
    for task in claim.tasks:
        others = findings(replace(claim, tasks=tuple(each for each in claim.tasks if each != task)), scores)
        if others[-1].effect is not None and (without := decide(others)) != verdict:
            yield task, others[-1], without
