"""ECDDP: student and teacher of a self-distillation (Yan98/Event-Camera-Data-Dense-Pre-training).

Microsoft's naming under `student.backbone.` and `teacher.backbone.`, with a norm per output and 6 input channels. Its
own fine-tuning leaves the patch embedding out; TESPEC's comparison repeats it, and so does this.
"""

from __future__ import annotations

from tespec.weights.convert.source import SWIN_STEM, Renamed, Source, Tensors, grouped
from tespec.weights.convert.swin import has_swin, rename_swin

BRANCHES = {name: f"{name}.backbone." for name in ("teacher", "student")}


def rename_ecddp(tensors: Tensors, where: object, branch: str = "teacher") -> Renamed:
    """The backbone of one branch; the teacher is what self-distillation evaluates."""
    prefix = BRANCHES[branch]
    backbone = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
    kept, unused = rename_swin(backbone, where)
    rest = grouped(name for name in tensors if not name.startswith(prefix))
    return kept, (*(f"{prefix}{name}" for name in unused), *rest)


def _rename_student(tensors: Tensors, where: object) -> Renamed:
    return rename_ecddp(tensors, where, "student")


def _has_teacher(tensors: Tensors) -> bool:
    return has_swin(tensors, BRANCHES["teacher"])


def _has_student(tensors: Tensors) -> bool:
    return has_swin(tensors, BRANCHES["student"])


CROP = (192, 192)  # config/pretrain/swin_small.yml, img_size
DATA = "E-TartanAir"
ECDDP = Source(
    "ecddp",
    "ECDDP's teacher, a Swin Transformer",
    _has_teacher,
    rename_ecddp,
    SWIN_STEM,
    CROP,
    has_lstms=False,
    data=DATA,
)
ECDDP_STUDENT = Source(
    "ecddp-student",
    "ECDDP's student, a Swin Transformer; the file holds no teacher",
    _has_student,
    _rename_student,
    SWIN_STEM,
    CROP,
    has_lstms=False,
    data=DATA,
)
