"""Loss curves of pre-trainings, with how their features spread at the end."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from tespec.core.files import whole_file

ACROSS = 4  # pictures side by side


def draw_curves(records: Sequence[Any], path: Path) -> None:
    """Write a picture of the training loss of each pre-training record as a PNG; at least one."""
    rows = -(-len(records) // ACROSS)
    columns = min(ACROSS, len(records))
    figure = Figure(figsize=(3.6 * columns, 2.7 * rows), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for axis, record in zip(axes, records, strict=False):
        steps, losses = zip(*((point["step"], point["loss"]) for point in record["curve"]), strict=True)
        axis.plot(steps, losses, color="tab:blue", linewidth=1)
        objective, metrics = record["config"]["objective"], record["metrics"]
        named = objective["type"] + (f" ({objective['target']['kind']})" if "target" in objective else "")
        axis.set_title(f"{record['method_name']}: {named}\n({record['arch']})", fontsize=9)
        spread = (
            f"feature std {metrics['feature_std']:.2f}, rank {metrics['feature_rank']:.0f}\n"
            f"last stage {metrics['last_stage_std']:.2f}, rank {metrics['last_stage_rank']:.0f}"
        )
        axis.text(0.97, 0.93, spread, transform=axis.transAxes, ha="right", va="top", fontsize=8)
        axis.set_xlabel("step", fontsize=8)
        axis.set_ylim(bottom=0 if min(losses) < 0.3 * max(losses) else None)
        axis.tick_params(labelsize=7)
    for axis in axes[len(records) :]:
        axis.set_axis_off()
    with whole_file(path) as unfinished:
        figure.savefig(unfinished, dpi=90, format="png", metadata={"Software": None})
