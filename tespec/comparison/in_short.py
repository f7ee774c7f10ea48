"""Tables in short, for a page that is read on a phone: few columns, few words."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import product

from tespec.comparison.ablations import AblationRow, ablations, measured_rows, pretrained_rows
from tespec.comparison.basis import average, dotted, learns_all
from tespec.comparison.contrasts import CONTRARY, HOLDS, NOT_MEASURED, parsed, read_claims
from tespec.comparison.controls import controls_table
from tespec.comparison.curves import GROUPS as FRAMES
from tespec.comparison.curves import Curve, Point, budget, memory_cell, rank_cell, settings_of_curve, why_unclear
from tespec.comparison.evidence import newest_bases, of_split
from tespec.comparison.identity import TEST, canonical
from tespec.comparison.pretrained import (
    GROUPS,
    OBJECTIVES,
    TARGETS,
    healthy,
    held_out_loss,
    learned,
    ranks_over_training,
    relative_losses,
)
from tespec.comparison.published import scheme_of, schemes
from tespec.comparison.rates import searches
from tespec.comparison.records import Record
from tespec.comparison.references import of_references
from tespec.comparison.shown import baseline_table, claims_table
from tespec.comparison.side_by_side import measured_cell, published_table
from tespec.comparison.table import MISSING, Cell, Column, Group, Row, Table, only_columns, with_best_bold
from tespec.core.errors import one_line

WORDS = {"recurrent": "recurrent", "feedforward": "feed-forward"}
TIMES = (0.0, 1.0, 3.0)  # seconds since the state was zeroed
REMEMBERED = ("target", "objective")  # ablations whose rows the memory figure compares


def texts(*names: str) -> list[Column]:
    """Columns of words."""
    return [Column((name,), name, number=False) for name in names]


def numbers(*names: str) -> list[Column]:
    """Columns of numbers."""
    return [Column((name,), name) for name in names]


def with_all_labels(records: Sequence[Record]) -> list[Record]:
    """Records but those of networks that learned from a part of the labels."""
    return [record for record in records if learns_all(record)]


def controls_in_short(records: Sequence[Record]) -> Table:
    """The controls: what was compared, the verdict and why."""
    table = controls_table(records)
    names = ("Task", "network or frames", "verdict", "effect", "95 % interval", "detectable", "why")
    # The rule, which comes first, and the split, which comes last, stand in the page's own words.
    return replace(_chosen(table, names), notes=table.notes[1:-1])


def claims_in_short(records: Sequence[Record]) -> tuple[Table, list[str]]:
    """The claims that were measured, and what those say that were not."""
    table = claims_table(records)
    there = newest_bases(of_split(records, TEST))
    groups, missing = [], []
    for claim in read_claims():
        # What an ablation lacks on its own task is lacking where another stands in for it, too.
        rows = [
            row
            for row in table.rows
            if row.facts["claim"] == claim.name and (row.facts["task"] in there or not claim.tasks)
        ]
        why = [column.key for column in table.columns].index("why")
        shown = [row for row in rows if not row.cells[why].text.startswith(NOT_MEASURED)]
        if shown:
            left = ", ".join(row.cells[0].text for row in rows if row not in shown)
            groups.append(Group(claim.says + (f" (not measured on {left})" if left else ""), tuple(shown)))
        else:
            missing.append(claim.says)
    names = ("Task", "verdict", "weakest comparison", "effect", "95 % interval", "detectable", "paper", "why")
    return replace(_chosen(replace(table, groups=tuple(groups)), names), notes=()), missing


def gains_in_short(records: Sequence[Record], baseline: str) -> tuple[Table, Counter[str]] | None:
    """What each method gains over a baseline with the same network, a column for each task; and the verdicts counted.

    None where no method was measured beside the baseline.
    """
    evaluations = [record for record in of_split(records, TEST) if record["kind"] == "evaluation"]
    titles = {record["method_name"]: one_line(record["method"]["title"]) for record in evaluations}
    if baseline not in titles:
        return None
    long = baseline_table(records, baseline)
    place = {column.key: index for index, column in enumerate(long.columns)}
    tasks, gains = dict[str, str](), defaultdict[str, dict[str, Cell]](dict)
    for row in long.rows:
        text = {key: row.cells[index].text for key, index in place.items()}
        tasks[row.facts["task"]] = f"{text['Task']}, {text['Metric']}"
        verdict = row.facts["verdict"]
        shown = " ".join(text[key] for key in ("effect", "95 % interval") if text[key] != MISSING) or MISSING
        shown += ", worse" * (verdict == CONTRARY)
        cell = replace(row.cells[place["effect"]], text=shown, bold=verdict == HOLDS)
        gains[row.facts["claim"]][row.facts["task"]] = cell
    if not gains:
        return None
    columns = [*texts("Method", "Recurrent"), *numbers(*(tasks[task] for task in sorted(tasks)))]
    rows = []
    for claim, found in gains.items():
        of = parsed(claim)
        words = f"{titles[of.method]} {of.backbone}".strip(), "Yes" if of.arch == "recurrent" else "No"
        rows.append(Row((*map(Cell, words), *(found.get(task, Cell()) for task in sorted(tasks)))))
    table = Table(f"Gains over {titles[baseline]}", tuple(columns), (Group("", tuple(rows)),))
    return table, Counter(row.facts["verdict"] for row in long.rows)


def _chosen(table: Table, names: Sequence[str]) -> Table:
    keys = [column.key for column in table.columns]
    return only_columns(table, [keys.index(name) for name in names])


def scores_in_short(records: Sequence[Record]) -> list[Table]:
    """A table for each task: the main score over all, moving and standing frames; floor and ceiling below."""
    chosen = with_all_labels(of_split(records, TEST))
    found = []
    for task, basis in newest_bases(chosen).items():
        members = [*basis.records, *of_references(chosen, basis)]
        name = next(name for name, each in schemes(members).items() if task in {known.name for known in each.tasks})
        table, scheme = published_table(name, members, "measured"), scheme_of(task, members)
        kept = [
            index
            for index, column in enumerate(table.columns)
            if column.key in ("Method", "Recurrent")
            or column.facts.get("metric") == scheme.main.name
            or column.headers[-1] == "seeds"
        ]
        short = only_columns(table, kept)
        columns = tuple(replace(column, headers=column.headers[-1:]) for column in short.columns)
        found.append(replace(short, title=scheme.title_of(task), columns=columns, notes=()))
    return sorted(found, key=lambda table: table.title)


def ablations_in_short(records: Sequence[Record]) -> Table | None:
    """All ablations that were measured, a group for each; None where none was."""
    chosen = with_all_labels(of_split(records, TEST))
    columns: list[Column] = []
    groups: list[Group] = []
    there: set[tuple[str, str]] = set()
    for ablation in ablations().values():
        for measured in measured_rows(ablation, chosen)[:1]:
            scheme = scheme_of(measured.basis.task, measured.basis.records)
            main, decimals = scheme.main, scheme.decimals
            if not columns:
                score = Column((main.title,), main.name, main.better)
                columns = [*texts("Row"), score, *numbers("seeds", "paper")]
            rows = []
            for row in ablation.rows:
                runs = measured.rows.get(row.name, [])
                ours = measured_cell([each["metrics"].get(main.name) for each in runs], runs, decimals)
                seeds = Cell(str(len(runs)), len(runs)) if runs else Cell()
                rows.append(Row((Cell(row.name), ours, seeds, _published(row, decimals))))
            title, task = ablation.title, measured.basis.task
            if (title, task) in there:  # the paper has it on two tasks, and one stands in
                continue
            there.add((title, task))
            elsewhere = "" if task == ablation.task else f"; paper: on {scheme.title_of(ablation.task)}"
            heading = f"{title}, on {scheme.title_of(task)}{elsewhere}"
            groups += with_best_bold([Group(heading, tuple(rows))], columns)
    return Table("Ablations", tuple(columns), tuple(groups)) if groups else None


def _published(row: AblationRow, decimals: int) -> Cell:
    return Cell() if row.paper[0] is None else Cell(f"{row.paper[0]:.{decimals}f}", row.paper[0])


def budgets_table(curves: Sequence[Curve], records: Sequence[Record] = ()) -> Table:
    """From how many steps on networks without pre-training are clear of the floor, and how many the comparison takes.

    Args:
        curves: of learning.
        records: of the comparison.
    """
    shown = [frames for frames in FRAMES if any(frames in curve.points[0].scores for curve in curves)]
    columns = [
        *texts("Task", "Network"),
        *numbers("peak rate", "steps tried"),
        *numbers(*(f"clear of the floor, {frames or 'all'}" for frames in shown)),
        *numbers("last score", "what the state is worth", "seeds", "last-stage rank", "steps taken"),
    ]
    rows = []
    for curve in curves:
        taken = sorted({
            record["config"]["optimisation"]["steps"]
            for record in records
            if record["kind"] == "evaluation" and settings_of_curve(record) == curve.key
        })  # fmt: skip
        clear = [budget(curve, curve.floors.get(frames), frames) for frames in shown]
        unclear = [why_unclear(curve, frames) for frames in shown]
        rows.append(Row((
            Cell(curve.scheme.title_of(curve.task)),
            Cell(WORDS[curve.arch] + (f" ({curve.settings})" if curve.settings else "")),
            Cell(f"{curve.peak_lr:g}", curve.peak_lr),
            Cell(" ".join(f"{point.steps:,}" for point in curve.points)),
            *(Cell(f"{steps:,}", steps) if steps else Cell(why) for steps, why in zip(clear, unclear, strict=True)),
            _score(curve.points[-1], curve.scheme.decimals),
            memory_cell(curve.points[-1], curve.scheme.decimals),
            Cell(str(curve.points[-1].seeds), curve.points[-1].seeds),
            rank_cell(curve.points[-1]),
            Cell(", ".join(f"{steps:,}" for steps in taken) or "-"),
        )))  # fmt: skip
    return Table("Budgets", tuple(columns), (Group("", tuple(rows)),))


def equals_table(curves: Sequence[Curve]) -> Table:
    """Recurrent and feed-forward networks after as many labels, and after as many clips: the most that both have seen.

    Args:
        curves: one of each task and architecture.
    """
    rows = []
    for task in dict.fromkeys(curve.task for curve in curves):
        of_task = {curve.arch: curve for curve in curves if curve.task == task}
        if len(of_task) < len(WORDS):
            continue
        scheme = of_task["recurrent"].scheme
        if len({curve.data for curve in of_task.values()}) > 1:
            said = Cell("not measured on the same data")
            rows.append(Row((Cell(scheme.title_of(task)), Cell(scheme.main.title), said, Cell(), Cell())))
            continue
        for seen in ("labels", "clips"):
            pairs = [_points(of_task[arch], seen) for arch in WORDS]
            both = pairs[0].keys() & pairs[1].keys()
            count = max(both, default=None)
            scores = [Cell() if count is None else _score(points[count], scheme.decimals) for points in pairs]
            same = "no such number" if count is None else f"{count:,} {seen}"
            rows.append(Row((Cell(scheme.title_of(task)), Cell(scheme.main.title), Cell(same), *scores)))
    columns = [*texts("Task", "Metric", "after as many"), *numbers(*WORDS.values())]
    return Table("At equal labels and at equal clips", tuple(columns), (Group("", tuple(rows)),))


def _points(curve: Curve, seen: str) -> dict[int, Point]:
    per_step = {"labels": curve.labels, "clips": curve.clips}[seen]
    return {point.steps * per_step: point for point in curve.points}


def _score(point: Point, decimals: int) -> Cell:
    error = point.errors.get("")
    spread = "" if error is None else f" ± {error:.{decimals}f}"
    return Cell(f"{point.scores['']:.{decimals}f}{spread}", point.scores[""], runs=point.seeds, sources=point.sources)


def rates_in_short(records: Sequence[Record]) -> Table:
    """The peak rate that each pre-training takes, of those tried."""
    columns = [*texts("Pre-training", "tried", "healthy"), *numbers("chosen", "its last-stage rank")]
    rows = []
    for search in searches(records):
        chosen, alive = search.chosen, [f"{each.rate:g}" for each in search.tried if each.healthy]
        verdict = (Cell(f"{chosen.rate:g}", chosen.rate), chosen.rank_cell)
        if not search.decides:
            verdict = Cell("repeated with more steps"), Cell()
        rows.append(Row((
            Cell(search.name), Cell(", ".join(f"{each.rate:g}" for each in search.tried)),
            Cell(", ".join(alive) or "none"), *verdict,
        )))  # fmt: skip
    return Table("Peak rates", tuple(columns), (Group("", tuple(rows)),))


def health_table(records: Sequence[Record]) -> Table:
    """Whether the features of each pre-training stayed alive: a row for each method, or row of an ablation.

    Of a seed that was trained several times, as on other data or by other code, the newest counts.
    """
    newest = {
        (record["method_name"], canonical(record["config"]), record["seed"]): record
        for record in sorted(records, key=lambda record: record["written"])
        if record["kind"] == "pretraining"
    }
    alike: dict[tuple[str, str, str], list[Record]] = defaultdict(list)
    for record in newest.values():
        title = " ".join(record["method"]["title"].split())
        alike[title, learned(record), WORDS[record["arch"]]].append(record)
    columns = [
        *texts("Pre-training", "learns", "Network"),
        *numbers("healthy", "last-stage rank", "over the training", "loss"),
    ]
    rows = []
    named = [(*key, *part) for key, members in sorted(alike.items()) for part in _told_apart(members)]
    for title, what, arch, differs, runs in named:
        ranks = [run["metrics"]["last_stage_rank"] for run in runs if "last_stage_rank" in run["metrics"]]
        loss = average([held_out_loss(run) for run in runs])
        counted = sum(healthy(run)[0] for run in runs)
        rows.append(Row((
            Cell(title + differs), Cell(what), Cell(arch), Cell(f"{counted} of {len(runs)}", counted),
            Cell(f"{min(ranks):.1f}", min(ranks)) if ranks else Cell(),
            Cell(" ".join(f"{rank:.1f}" for rank in ranks_over_training(runs[0])) or "-") if len(runs) == 1 else Cell(),
            Cell() if loss is None else Cell(f"{loss.value:.4f}", loss.value),
        )))  # fmt: skip
    return Table("Health of pre-trainings", tuple(columns), (Group("", tuple(rows)),))


def _told_apart(records: Sequence[Record]) -> list[tuple[str, list[Record]]]:
    """Records of the same settings, behind those settings that most of the others do not have, in words."""
    groups: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        groups[canonical(record["config"])].append(record)
    settings = [dotted(runs[0]["config"]) for runs in groups.values()]
    usual = {key: Counter(each.get(key) for each in settings).most_common(1)[0][0] for key in settings[0]}
    found = []
    for each, runs in zip(settings, groups.values(), strict=True):
        own = [f"{key} = {value}" for key, value in each.items() if value != usual.get(key)]
        found.append((f" ({', '.join(own)})" if own else "", runs))
    return sorted(found, key=lambda named: named[0])


def remembering(records: Sequence[Record]) -> list[Record]:
    """Pre-trainings that differ in their target or objective alone, of those that say what memory is worth."""
    made = [record for record in records if record["kind"] == "pretraining" and record["curves"].get("since_zeroed")]
    every = ablations()
    found = {
        record["name"]: record
        for name in REMEMBERED
        for runs in pretrained_rows(every[name], made).values()
        for record in runs
    }
    if found or not made:
        return [found[name] for name in sorted(found)]
    newest = max(made, key=lambda record: record["written"])
    return [record for record in made if record["config"] == newest["config"]]


def memory_table(records: Sequence[Record]) -> Table:
    """The loss at three times since the state was zeroed, relative to that of the trivial prediction."""
    groups: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        groups[learned(record)].append(record)
    shown = [group for group in GROUPS if any(relative_losses(record, group) for record in records)]
    columns = [*texts("What is learned"), *numbers(*(f"{group}, {time:g} s" for group, time in product(shown, TIMES)))]
    rows = []
    order = [*TARGETS.values(), *OBJECTIVES.values()]
    for name in sorted(groups, key=lambda name: order.index(name) if name in order else len(order)):
        runs = groups[name]
        cells = [Cell(name)]
        for group, time in product(shown, TIMES):
            found = average([_loss_at(run, group, time) for run in runs])
            cells.append(Cell() if found is None else Cell(f"{found.value:.3f}", found.value))
        rows.append(Row((*cells, Cell(str(len(runs)), len(runs)))))
    return Table("Memory", (*columns, *numbers("seeds")), (Group("", tuple(rows)),))


def _loss_at(record: Record, group: str, time: float) -> float | None:
    losses = relative_losses(record, group)
    return min(losses, key=lambda each: abs(each[0] - time))[1] if losses else None
