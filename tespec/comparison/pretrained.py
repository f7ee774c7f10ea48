"""What records of pre-trainings say: whether features stayed alive."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tespec.comparison.records import Record

LEAST_RANK = 8.0  # of the last stage's features
NOISE = 0.1  # share of the rank that it may lose without counting as falling
STAGE = "stage "  # groups: how the features of each differ
LAST_STAGE = "last_stage"  # curve
TARGETS = {
    "intensity": "intensity, Eq. 7",
    "high_pass": "intensity, Eq. 6",
    "uniform_decay": "intensity, uniform decay",
    "histograms": "histograms",
}
OBJECTIVES = {"cpc": "CPC", "ecddp": "ECDDP"}


def healthy(record: Record) -> tuple[bool, str]:
    """Whether a pre-training is accepted, and why or why not.

    It is where the rank of the last stage's features on data held out is above `LEAST_RANK`, and at the end no more
    than `NOISE` below the highest rank seen before.
    """
    rank = record["metrics"].get("last_stage_rank")
    if rank is None or _scored_nothing(record):
        return False, "its record does not say the last stage's rank"
    if rank <= LEAST_RANK:
        return False, f"the last stage's rank is {rank:.1f}, not above {LEAST_RANK:g}"
    ranks = ranks_over_training(record)
    if not ranks:
        return False, "its record does not say the last stage's rank over the training"
    if ranks[-1] < (1 - NOISE) * max(ranks):
        return False, f"the last stage's rank falls from {max(ranks):.1f} to {ranks[-1]:.1f}"
    return True, f"the last stage's rank is {rank:.1f}, and does not fall ({' '.join(f'{each:.1f}' for each in ranks)})"


def ranks_over_training(record: Record) -> list[float]:
    """Rank of the last stage's features on a small part of the data held out, at moments of a pre-training."""
    return [point["rank"] for point in record["curves"].get(LAST_STAGE, ())]


def stage_ranks(record: Record) -> list[float]:
    """Rank of the features of each stage of a network on some frames, from the first on; none where it is not said."""
    return [numbers["rank"] for name, numbers in sorted(record["groups"].items()) if name.startswith(STAGE)]


def last_stage_ranks(records: Sequence[Record]) -> list[float]:
    """Rank of the features of each network's last stage; none where one of the records does not say it."""
    ranks = [stage_ranks(record) for record in records]
    return [each[-1] for each in ranks] if all(ranks) else []


def learned(record: Record) -> str:
    """What a pre-training learns to do, in a word or two: the target that is rebuilt, or the objective."""
    objective = record["config"].get("objective", {})
    kind = str(objective.get("type", ""))
    target = objective.get("target")
    if isinstance(target, Mapping):
        return TARGETS.get(str(target.get("kind")), str(target.get("kind")))
    return OBJECTIVES.get(kind, kind.replace("_", " "))


def held_out_loss(record: Record) -> float | None:
    """The loss of a pre-training on data held out, by which its settings are chosen; None where it has none.

    Of masked reconstruction that with the state carried; of the others "loss".
    """
    if _scored_nothing(record):
        return None
    metrics = record["metrics"]
    names = ("loss_masked_carried", "loss_all_carried", "loss")
    return next((metrics[name] for name in names if name in metrics), None)


def _scored_nothing(record: Record) -> bool:
    """Whether no batch of data held out was scored, as where fewer pairs are held out than a batch takes."""
    return record["metrics"].get("feature_rank") == 0.0
