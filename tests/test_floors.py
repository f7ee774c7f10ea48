"""The rooms of the house stand on floors: imports only point down, and none go in a circle."""

from __future__ import annotations

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from tespec.core.paths import REPOSITORY

# From the ground up. A room may import from rooms of lower floors, and from its own floor as long as no circle follows.
FLOORS = (
    ("core",),
    ("comparison", "models", "metrics", "pictures", "events"),
    ("pretraining", "datasets", "sample", "weights"),
    ("training",),
    ("baselines", "tasks"),
    ("runs", "inference"),
    ("report", "plan"),
    ("cli",),
)
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}
MODULES = {
    ".".join(path.relative_to(REPOSITORY).with_suffix("").parts).removesuffix(".__init__"): path
    for package in ("tespec", "baselines")
    for path in sorted((REPOSITORY / package).rglob("*.py"))
}


def room_of(module: str) -> str | None:
    """Room of a module, a command line's for what `python -m` starts; None of the package's own files."""
    first, _, rest = module.partition(".")
    if rest.endswith(".__main__"):
        return "cli"
    room = rest.partition(".")[0] if first == "tespec" else first
    return room if room in FLOOR or room not in ("", "registry") else None


def imports_of(path: Path, *, everywhere: bool) -> set[str]:
    """Modules of the harness that a file imports: at its top, or in its functions too."""
    found: set[str] = set()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree) if everywhere else top_level(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            inner = {f"{node.module}.{each.name}" for each in node.names}
            modules = inner & set(MODULES)
            found |= modules if modules == inner else modules | {node.module}
        elif isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
    return found & set(MODULES)


def top_level(tree: ast.Module) -> list[ast.stmt]:
    return [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]


def test_every_room_has_a_floor() -> None:
    assert {room_of(module) for module in MODULES} - {None} == set(FLOOR)


def test_imports_only_point_down() -> None:
    up = [
        f"{module} imports {other}"
        for module, path in MODULES.items()
        for other in imports_of(path, everywhere=True)
        if (here := room_of(module)) and (there := room_of(other)) and FLOOR[there] > FLOOR[here]
    ]
    assert up == []


def test_rooms_import_each_other_in_no_circle() -> None:
    rooms: dict[str, set[str]] = {room: set() for room in FLOOR}
    for module, path in MODULES.items():
        here = room_of(module)
        if here:
            rooms[here] |= {there for each in imports_of(path, everywhere=True) if (there := room_of(each))} - {here}
    try:
        TopologicalSorter(rooms).prepare()
    except CycleError as error:
        raise AssertionError(f"a circle of rooms: {' -> '.join(error.args[1])}") from error


def test_modules_import_each_other_in_no_circle() -> None:
    graph = {module: imports_of(path, everywhere=False) - {module} for module, path in MODULES.items()}
    # A package's own file gathers the names of its modules, which may import their neighbours by it.
    packages = {module for module, path in MODULES.items() if path.name == "__init__.py"}
    try:
        TopologicalSorter({module: used - packages for module, used in graph.items()}).prepare()
    except CycleError as error:
        raise AssertionError(f"a circle of modules: {' -> '.join(error.args[1])}") from error


def test_what_only_reads_records_needs_no_torch() -> None:
    light = [module for module in MODULES if room_of(module) in ("comparison", "report", "plan", "cli")]
    heavy = {"torch", "timm", "mmengine", "mmdet", "mmseg"}
    for module in light:
        for node in top_level(ast.parse(MODULES[module].read_text(encoding="utf-8"))):
            names = [each.name for each in node.names] if isinstance(node, ast.Import) else [str(node.module)]
            assert not {name.partition(".")[0] for name in names} & heavy, module
