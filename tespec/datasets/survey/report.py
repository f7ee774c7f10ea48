"""What a survey found, as lines of text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tespec.datasets.survey.facts import RecordingFacts

COLUMNS = ("split", "recording", "sensor", "events", "length", "Mev/s", "peak", "ON", "labels", "every", "size")


def table(found: Sequence[RecordingFacts]) -> list[str]:
    """One line per recording under a line of headings, columns aligned."""
    rows = [COLUMNS, *(_row(facts) for facts in found)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if place < 2 else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


def _row(facts: RecordingFacts) -> tuple[str, ...]:
    events, labels = facts.events, facts.labels
    of_events = ("-",) * 6 if events is None else (
        f"{events.width}x{events.height}",
        f"{events.count:,}",
        f"{events.seconds:.1f} s",
        f"{events.rate / 1e6:.3g}",
        f"{events.peak / 1e6:.3g}",
        f"{events.positive:.0%}",
    )  # fmt: skip
    of_labels = ("-", "-") if labels is None else (f"{labels.count:,}", f"{labels.spacing_ms[1]:g} ms")
    return (facts.split, facts.name, *of_events, *of_labels, bytes_in_words(facts.bytes))


def classes(found: Sequence[RecordingFacts]) -> list[str]:
    """How often each class occurs in each split; nothing where labels have no classes."""
    lines = []
    for split in dict.fromkeys(facts.split for facts in found):
        labels = [facts.labels for facts in found if facts.split == split and facts.labels is not None]
        if not labels or not labels[0].classes:
            continue
        counts = {name: sum(each.classes[name] for each in labels) for name in labels[0].classes}
        total = max(sum(counts.values()), 1)
        shares = ", ".join(f"{name} {count / total:.1%}" for name, count in counts.items())
        unlabelled = sum(each.unlabelled * each.count for each in labels) / max(sum(each.count for each in labels), 1)
        lines.append(f"{split}: {shares}" + (f"; {unlabelled:.1%} of all pixels carry no label" if unlabelled else ""))
    return lines


def extents(found: Sequence[RecordingFacts]) -> list[str]:
    """Smallest and largest depth, or box side, of each split that has any."""
    by_split: dict[str, list[tuple[float, float]]] = {}
    for facts in found:
        if facts.labels is not None and facts.labels.extent[1] > 0:
            by_split.setdefault(facts.split, []).append(facts.labels.extent)
    return [
        f"{split}: {min(low for low, _ in pairs):.2f} to {max(high for _, high in pairs):.2f}"
        for split, pairs in by_split.items()
    ]


def remarks(found: Sequence[RecordingFacts]) -> Iterator[str]:
    """What is unusual but handled, a line each."""
    for facts in found:
        for note in facts.notes:
            yield f"{facts.name}: {note}"


def problems(found: Sequence[RecordingFacts]) -> list[str]:
    """Everything that makes a recording unusable, a line each, without repetition."""
    return list(dict.fromkeys(str(problem) for facts in found for problem in facts.problems))


def bytes_in_words(count: float) -> str:
    """A number of bytes in the unit that suits it: 1 MB is 1e6 bytes."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"
