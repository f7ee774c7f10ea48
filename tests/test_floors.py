"""Layers of packages: imports never point to a higher layer, and none are circular."""

import ast
from graphlib import TopologicalSorter

from tespec.core.paths import REPOSITORY

# Layers from the lowest up. A package may import from lower layers, and from its own if no import becomes circular.
FLOORS = (
    ("core", "registry"),
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


def room_of(module):
    """Package of a module, "cli" for a `__main__` module; None for the file of `tespec` itself."""
    first, _, rest = module.partition(".")
    if rest.endswith(".__main__"):
        return "cli"
    return (rest.partition(".")[0] or None) if first == "tespec" else first


def imports_of(path, *, everywhere):
    """Modules that a file imports at its top level or, with `everywhere`, also in its functions."""
    tree, found = ast.parse(path.read_text(encoding="utf-8")), set()
    for node in ast.walk(tree) if everywhere else tree.body:
        if isinstance(node, ast.ImportFrom) and node.module:
            inner = {f"{node.module}.{each.name}" for each in node.names}
            modules = inner & set(MODULES)
            found |= modules if modules == inner else modules | {node.module}
        elif isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
    return found


def has_code(path):
    return any(isinstance(node, ast.ClassDef | ast.FunctionDef) for node in ast.parse(path.read_text()).body)


def test_imports_only_point_down():
    for module, path in MODULES.items():
        for other in imports_of(path, everywhere=True) & set(MODULES):
            here, there = room_of(module), room_of(other)
            assert None in (here, there) or FLOOR[there] <= FLOOR[here], f"{module} imports {other}"


def test_modules_import_each_other_in_no_circle():
    graph = {module: imports_of(path, everywhere=False) & set(MODULES) - {module} for module, path in MODULES.items()}
    # An `__init__.py` without code only re-exports names, so the package's modules may import each other through it.
    packages = {module for module, path in MODULES.items() if path.name == "__init__.py" and not has_code(path)}
    TopologicalSorter({module: used - packages for module, used in graph.items()}).prepare()


def test_what_only_reads_records_needs_no_torch():
    heavy = {"torch", "timm", "mmengine", "mmdet", "mmseg"}
    for module in MODULES:
        if room_of(module) in ("comparison", "report", "plan", "cli"):
            used = {name.partition(".")[0] for name in imports_of(MODULES[module], everywhere=False)}
            assert not used & heavy, module
