"""Whether the features of a pre-trained network stayed alive."""

from __future__ import annotations

from tespec.comparison.records import Record

LEAST_RANK = 8.0  # of the last stage's features
NOISE = 0.1  # share of the rank that it may lose without counting as falling


def healthy(record: Record) -> tuple[bool, str]:
    """Whether a pre-training is accepted, and why or why not.

    It is where the rank of the last stage's features on validation data is above `LEAST_RANK`, and at the end no more
    than `NOISE` below the highest rank seen before.
    """
    rank = record.metrics.get("last_stage_rank")
    if rank is None or not record.metrics.get("feature_rank"):
        return False, "its record does not hold the last stage's rank"
    if rank <= LEAST_RANK:
        return False, f"the last stage's rank is {rank:.1f}, not above {LEAST_RANK:g}"
    ranks = [point["rank"] for point in record.curves.get("last_stage", ())]
    if not ranks:
        return False, "its record does not hold the last stage's rank over the training"
    if ranks[-1] < (1 - NOISE) * max(ranks):
        return False, f"the last stage's rank falls from {max(ranks):.1f} to {ranks[-1]:.1f}"
    return True, f"the last stage's rank is {rank:.1f}, and does not fall ({' '.join(f'{each:.1f}' for each in ranks)})"
