"""The page of a comparison on the sample world, as Markdown: nothing between its marks is written by hand."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

from tespec.comparison.archive import ARCHIVE
from tespec.comparison.basis import learns_all
from tespec.comparison.collected import Collected
from tespec.comparison.contrasts import VERDICTS
from tespec.comparison.controls import FOLLOWS, PASSED, TITLES, controls
from tespec.comparison.curves import (
    SPLIT,
    Curve,
    curves_table,
    leading,
    learning_curves,
    settings_of_curve,
    without_repeats,
)
from tespec.comparison.evidence import of_split
from tespec.comparison.few_labels import label_curves, label_table
from tespec.comparison.identity import TEST, package_code
from tespec.comparison.in_short import (
    ablations_in_short,
    budgets_table,
    claims_in_short,
    controls_in_short,
    equals_table,
    gains_in_short,
    health_table,
    memory_table,
    rates_in_short,
    remembering,
    scores_in_short,
)
from tespec.comparison.pretrained import LEAST_RANK, NOISE
from tespec.comparison.rates import searches
from tespec.comparison.records import Record, code_of
from tespec.comparison.render import render_markdown
from tespec.comparison.side_by_side import of_older_code, published_table
from tespec.comparison.table import Table
from tespec.core.errors import one_line

BEGIN, END = "<!-- results: written by plan.py --publish -->", "<!-- end of results -->"
NOT_RUN = "Not run yet."
COMPARISON, CURVES, MEMORY, FEW_LABELS = "comparison.png", "learning_curves.png", "memory.png", "few_labels.png"
PICTURED = "segmentation"  # the table that is also drawn, beside the paper's numbers
COMMANDS = "commands.txt"
EXACT = "runs.md#on-what-a-repetition-is-exact"
BASELINE = "scratch"  # what gains are reckoned over
TABLES, POINTS, AGAINST = "tables", "curves", f"against_{BASELINE}"  # folder, and two of its tables

CONTROLS_ABOUT = (
    "Measured on the validation split, by the rule of [tables.md](tables.md#controls); effects are positive in "
    "the control's favour. Detectable: the effect that these seeds would have shown with a probability of 80 %."
)
CURVES_ABOUT = (
    "Networks without pre-training, those of the controls among them, scored on the validation split. Clear of "
    "the floor: the number of steps from which on the score is better than the label prior by more than three "
    "standard errors. At one step recurrent and feed-forward networks see different numbers of clips and of "
    "labels, so they are compared at equal numbers of each. Last score: of all frames after the most steps, mean "
    "± standard error over the seeds of the curve; what the state is worth: by how much standing frames then "
    "score better with the state carried than with it zeroed at each label. Seeds, and last-stage rank (of the "
    "features, the lowest over seeds): after the most steps. The figure, and the comparison at equal numbers, "
    "show the settings that the comparison of methods takes, or those with the best last score where it has none "
    "yet; points without a bar are of one seed. "
)
HEALTH_ABOUT = (
    f"Healthy: the last stage's features have a rank above {LEAST_RANK:g} on data held out, and over the training "
    f"their rank on a small part of it, which is taken four times, ends no more than {NOISE:.0%} below its "
    "highest. Each method's rate is the one with the lowest loss of its own on data held out, of those that leave "
    "its features healthy, or that with the highest rank where none does; no label decides. Rates that say "
    "*repeated with more steps* were searched again. How much of the held-out data is scored: "
    "[pretraining.md](pretraining.md#is-it-healthy)."
)
MEMORY_ABOUT = (
    "Loss of the masked part (of CPC: its own loss) on streets held out, against the time since the network's "
    "state was zeroed, relative to the loss of the trivial prediction (zero; of CPC: chance): 1 means nothing "
    "learned, lower is better. The band is the standard error over seeds, where there are several."
)
SCORES_ABOUT = (
    "Scored on the test split; mean ± standard deviation over seeds. Bold: the best of a column and every number "
    "that is not significantly worse; a column without bold has no significant difference. Floor: the label "
    "prior, without input. Ceiling: a feed-forward network that sees the camera's true frame, which is no strict "
    "bound. Bars of the figure are 95 % intervals over seeds."
)
GAINS_ABOUT = (
    "What each pre-training adds to the mean score of the same network without one, with its 95 % interval; "
    "positive is better. Bold: significantly better by the rule of [tables.md](tables.md#what-was-shown), which "
    "corrects for all cells of this table; *worse* behind an interval: significantly worse. "
)
FEW_ABOUT = (
    "Fine-tuned with a part of the labels, spread evenly over the recordings; mean ± standard deviation over "
    "seeds (see the figure's bars, 95 % intervals). With fewer labels a step holds fewer as well: each clip still "
    "ends at a label, and a stream meets fewer. So methods compare at each share, and what fewer labels cost "
    "counts both."
)
ABLATIONS_ABOUT = (
    "Each row is pre-trained and fine-tuned. Bold: the best of an ablation and every row that is not "
    "significantly worse, corrected within that ablation alone; *Claims* corrects for all. The default row has "
    "more seeds than the others, and claims compare the seeds that rows share. Paper: its own number, of real "
    "data; they do not compare."
)
CLAIMS_ABOUT = (
    "Decided by the rule of [tables.md](tables.md#what-was-shown), which corrects for all claims of the page; "
    "shown is the weakest comparison of each. Detectable: the effect of that comparison that so many seeds would "
    "show with a probability of 80 %. Paper: its own difference, which decides nothing."
)

SHARED = (
    "Trained weights that networks start from were made once and shared by seeds: the spread, and what is decided by "
    "it, is that of fine-tuning, and another training of such weights is not covered."
)


def page_text(collected: Collected, folder: str) -> str:
    """All that came out, section by section; what was not run says so.

    Args:
        collected: the records.
        folder: that of the figures, as the page links it.
    """
    pictures = figures(collected)
    sections = {
        "Controls": _controls(collected),
        "Budgets": _budgets(collected, folder),
        "Pre-trainings": _pretrainings(collected),
        "Memory": _memory(collected),
        "Scores": _scores(collected),
        "Gains over no pre-training": _gains(collected, folder),
        "Few labels": _few_labels(collected),
        "Ablations": _ablations(collected),
        "Claims": _claims(collected),
        "What was run": _ran(collected, folder),
    }
    shown = {"Budgets": CURVES, "Memory": MEMORY, "Scores": COMPARISON, "Few labels": FEW_LABELS}
    parts = [of_older_code([*collected.records, *collected.curves, *collected.rates])]
    for heading, found in sections.items():
        parts.append(f"## {heading}")
        name = shown.get(heading, "")
        if name in pictures:
            parts.append(f"![{ALT[name]}]({folder}/{name})")
        parts += found or [NOT_RUN]
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


ALT = {
    COMPARISON: "The score of each method on each task, with floor and ceiling",
    CURVES: "Scores without pre-training by steps, clips and labels",
    MEMORY: "Held-out loss against the time since the state was zeroed, camera moving and standing",
    FEW_LABELS: "Scores by the share of labels",
}


def figures(collected: Collected) -> dict[str, Callable[[Path], None]]:
    """What draws each figure that there are records for, by the name of its file."""
    from tespec.pictures.few_labels import draw_few_labels
    from tespec.pictures.learning_curves import draw_learning_curves
    from tespec.pictures.memory import memory_figure
    from tespec.pictures.table import draw_table
    from tespec.report.comparison_figure import draw_comparison

    curves, memory = _leading(collected), remembering(collected.records)
    few = label_curves(collected.records)
    found: dict[str, Callable[[Path], None]] = {}
    if any(record["kind"] == "evaluation" for record in of_split(collected.records, TEST)):
        found[COMPARISON] = lambda path: draw_comparison(collected.records, path)
    full = [each for each in of_split(collected.records, TEST) if learns_all(each)]
    table = published_table(PICTURED, full)
    if any(cell.runs for row in table.rows for cell in row.cells):
        found[f"{PICTURED}.png"] = lambda path: draw_table(table, path)
    if curves:
        found[CURVES] = lambda path: draw_learning_curves(curves, path)
    if memory:
        found[MEMORY] = lambda path: memory_figure(memory, path)
    if few:
        found[FEW_LABELS] = lambda path: draw_few_labels(few, path)
    return found


def rendered(table: Table) -> str:
    """A table in Markdown without its title, which a heading of the page says."""
    return render_markdown(table).split("\n", 2)[2]


def titled(table: Table) -> str:
    """A table in Markdown below its title in bold."""
    return f"**{one_line(table.title)}**\n\n{rendered(table)}"


def _controls(collected: Collected) -> list[str]:
    if not any(record["kind"] == "evaluation" for record in of_split(collected.records, SPLIT)):
        return []
    found = controls(collected.records)
    lines = []
    for kind, title in TITLES.items():
        counts = Counter(each.passed for each in found if each.kind == kind)
        said = ", ".join(f"{word} {counts[passed]}" for passed, word in PASSED.items() if counts[passed])
        lines.append(f"- {title}: **{said}**.")
    lines += [f"- **{FOLLOWS[kind]}**" for kind in TITLES if any((c.kind, c.passed) == (kind, False) for c in found)]
    about = [CONTROLS_ABOUT, *_shared(collected.records, SPLIT)]
    return ["\n".join(lines), *about, rendered(replace(controls_in_short(collected.records), notes=()))]


def _untrained(collected: Collected) -> list[Record]:
    """What learning curves are made of: records of their plan, and those of the controls without pre-training."""
    return without_repeats([*collected.curves, *collected.records])


def points_table(collected: Collected) -> Table | None:
    """Every point of the learning curves; None where there is none."""
    records = _untrained(collected)
    return curves_table(records) if learning_curves(records) else None


def _leading(collected: Collected) -> list[Curve]:
    """Of each task and architecture the curve of the comparison's settings."""
    compared = (each for each in of_split(collected.records, TEST) if each["kind"] == "evaluation")
    return leading(learning_curves(_untrained(collected)), {settings_of_curve(each) for each in compared})


def _budgets(collected: Collected, folder: str) -> list[str]:
    curves = learning_curves(_untrained(collected))
    if not curves:
        return []
    about = f"{CURVES_ABOUT}Each point: [{POINTS}.md]({folder}/{TABLES}/{POINTS}.md)."
    return [about, rendered(budgets_table(curves, collected.records)), titled(equals_table(_leading(collected)))]


def _pretrainings(collected: Collected) -> list[str]:
    made = [record for record in collected.records if record["kind"] == "pretraining"]
    tried = searches(collected.rates)
    if not (made or tried):
        return []
    return [
        HEALTH_ABOUT,
        titled(rates_in_short(collected.rates)) if tried else f"Search for peak rates: {NOT_RUN.lower()}",
        titled(health_table(made)) if made else f"Pre-trainings of the comparison: {NOT_RUN.lower()}",
    ]


def _memory(collected: Collected) -> list[str]:
    found = remembering(collected.records)
    return [MEMORY_ABOUT, rendered(memory_table(found))] if found else []


def _scores(collected: Collected) -> list[str]:
    tables = scores_in_short(collected.records)
    return [SCORES_ABOUT, *_shared(collected.records, TEST), *map(titled, tables)] if tables else []


def _gains(collected: Collected, folder: str) -> list[str]:
    found = gains_in_short(collected.records, BASELINE)
    if found is None:
        return []
    table, verdicts = found
    said = ", ".join(f"{verdict} {verdicts[verdict]}" for verdict in VERDICTS if verdicts[verdict])
    each = f"Each verdict with its p and what could have been seen: [{AGAINST}.md]({folder}/{TABLES}/{AGAINST}.md)."
    return [f"Methods, networks and tasks: **{said}**.", GAINS_ABOUT + each, rendered(table)]


def _shared(records: Sequence[Record], split: str) -> list[str]:
    """What it means that several seeds started from the same weights, where evaluations on a split did."""
    seeds = defaultdict[str, set[int]](set)
    for record in of_split(records, split):
        if record["kind"] == "evaluation" and (start := record["weights"]["sha256"]):
            seeds[start].add(record["seed"])
    return [SHARED] if any(len(each) > 1 for each in seeds.values()) else []


def _few_labels(collected: Collected) -> list[str]:
    table = label_table(collected.records)
    return [FEW_ABOUT, rendered(table)] if table else []


def _ablations(collected: Collected) -> list[str]:
    table = ablations_in_short(collected.records)
    return [ABLATIONS_ABOUT, rendered(table)] if table else []


def _claims(collected: Collected) -> list[str]:
    if not any(record["kind"] == "evaluation" for record in of_split(collected.records, TEST)):
        return []
    table, missing = claims_in_short(collected.records)
    verdicts = Counter(row.facts["verdict"] for row in table.rows)
    said = ", ".join(f"{verdict} {count}" for verdict, count in sorted(verdicts.items()))
    about = [f"Claims on tasks: **{said}**.", CLAIMS_ABOUT, *_shared(collected.records, TEST)]
    parts = [*about, rendered(table)] if table.rows else []
    return [*parts, f"Not run yet: {'; '.join(missing)}."] if missing else parts


KINDS = {"evaluation": "fine-tunings", "pretraining": "pre-trainings", "reference": "references", "probe": "probes"}


def _ran(collected: Collected, folder: str) -> list[str]:
    parts = [
        f"- {name}: {ran(records)}"
        for name, records in (
            ("The comparison", collected.records),
            ("Networks that the controls start from", collected.starts),
            ("Learning curves", collected.curves),
            ("Peak rates", collected.rates),
        )
        if records
    ]
    if not parts:
        return []
    return ["\n".join(parts), _repeat(collected.records, folder)]


def _repeat(records: Sequence[Record], folder: str) -> str:
    said = (
        f"All records lie in [{ARCHIVE}]({folder}/{ARCHIVE}), which every command that takes `--results` reads, and "
        f"the command of each run in [{COMMANDS}]({folder}/{COMMANDS}). A run that has a record is not computed again, "
        "so a number is repeated into a folder of its own"
    )
    runs = [record for record in records if record["kind"] == "evaluation" and record["split"] == TEST]
    today = [record for record in runs if code_of(record) == package_code()]
    run = min(today or runs, key=lambda run: (run["method_name"] != BASELINE, run["time"]["total"]), default=None)
    if run is None or not run["command"]:
        return f"{said}: `--results again --runs again/runs` behind its command."
    name, value = next(iter(run["metrics"].items()), ("", 0.0))
    revision = str(run["environment"].get("revision", ""))[:12]
    at = f" at revision {revision}" if not today and revision else ""
    told = f"It gives {name} {value:.6g}{at}, to the digit on [the same kind of processor]({EXACT})."
    return f"{said}, as this one:\n\n    {one_line(run['command'])} --results again --runs again/runs\n\n{told}"


def ran(records: Sequence[Record]) -> str:
    """What was run, on what, how long it took, and by which code."""
    kinds = Counter(record["kind"] for record in records)
    counted = ", ".join(f"{count} {KINDS[kind]}" for kind, count in sorted(kinds.items()))
    machines = sorted({_machine(record) for record in records})
    seconds = [_seconds_of(record) for record in records]
    took = f"{sum(seconds) / 3600:.1f} hours of runs (a typical one {median(seconds):.0f} s)"
    dates = sorted(record["written"][:10] for record in records)
    when = dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"
    data = sorted({"the sample world" if record["data"] == "sample" else record["data"] for record in records})
    codes = sorted({record["code"] for record in records})
    return one_line(
        f"{counted} on {', '.join(data)}, {took}, {when}, on {'; '.join(machines)}, by code {', '.join(codes)}."
    )


def _seconds_of(record: Record) -> float:
    """How long a run took itself: a training that another run had done is that run's."""
    time = record["time"]
    trained = time.get("train", 0.0) if record["environment"].get("trained_by") else 0.0
    return float(time.get("total", 0.0) - trained)


def _machine(record: Record) -> str:
    facts = record["environment"]
    packages = facts.get("packages")
    torch = packages.get("torch") if isinstance(packages, dict) else None
    threads = facts.get("threads")
    parts = [str(facts[name]) for name in ("device", "cpu") if facts.get(name)]
    parts += [f"torch {torch}"] if torch else []
    parts += [f"{threads} thread{'s' if threads != 1 else ''}"] if isinstance(threads, int) else []
    return ", ".join(parts) or "an unnamed machine"


def commands_text(collected: Collected) -> str:
    """The command of each run below its record's name and first number."""
    lines = []
    for record in (*collected.records, *collected.starts, *collected.curves, *collected.rates):
        numbers = "".join(f", {name} {value:.6g}" for name, value in list(record["metrics"].items())[:1])
        lines += [f"# {one_line(record['name'])}{one_line(numbers)}", one_line(record["command"])]
    return "\n".join(lines) + "\n"


def put_in(page: str, text: str) -> str:
    """The page with `text` between its marks.

    Raises:
        ValueError: the page has no such marks.
    """
    if page.count(BEGIN) != 1 or page.count(END) != 1 or page.index(BEGIN) > page.index(END):
        raise ValueError("the page has no place for results")
    before, after = page.split(BEGIN)[0], page.split(END)[1]
    return f"{before}{BEGIN}\n\n{text}\n{END}{after}"
