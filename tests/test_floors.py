"""Layers of packages: no import, dynamic ones included, points up or is circular."""

import ast
from functools import cache
from graphlib import TopologicalSorter

import pytest

from tespec.core.paths import REPOSITORY

# Layers from the lowest up. A package may import from lower layers, and from its own if no import
# becomes circular.
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
    if f".{rest}".endswith(".__main__"):
        return "cli"
    return (rest.partition(".")[0] or None) if first == "tespec" else first


# Files that may import modules by computed names or from higher layers by name, and why.
DYNAMIC = {
    "tespec": "names of the package are imported when they are used",
    "tespec.registry": "importing the modules of a package registers their classes",
    "tespec.core.compat": "imports torchvision, whose name it patches",
}
IMPORTERS = ("import_module", "__import__", "import_modules", "exec_module", "load_module")


def imports_of(path, *, everywhere):
    """Modules that a file imports at top level; `everywhere`: also in functions and by name."""
    return imports_in(path.read_text(encoding="utf-8"), everywhere)


@cache
def nodes_of(text, everywhere=True):
    """Statements of a text; `everywhere`: all nodes, also inside of them."""
    tree = ast.parse(text)
    return list(ast.walk(tree)) if everywhere else tree.body


def imports_in(text, everywhere):
    found = set()
    for node in nodes_of(text, everywhere):
        if everywhere and isinstance(node, ast.Constant) and isinstance(node.value, str):
            found |= {node.value.partition(":")[0]} if "." in node.value else set()
        elif isinstance(node, ast.ImportFrom) and node.module:
            inner = {f"{node.module}.{each.name}" for each in node.names}
            modules = inner & set(MODULES)
            found |= modules if modules == inner else modules | {node.module}
        elif isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
    return found


def computed_imports(text):
    """Lines that import a module whose name is not a plain string, or relative to their package."""
    nodes = nodes_of(text)
    aliases = (each for node in nodes if isinstance(node, ast.ImportFrom) for each in node.names)
    names = {*IMPORTERS, *(each.asname for each in aliases if each.name in IMPORTERS)}
    lines = []
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.level:
            lines.append(node.lineno)
        if (
            isinstance(node, ast.Call)
            and {getattr(node.func, "attr", ""), getattr(node.func, "id", "")} & names
        ):
            values = [*node.args, *(each.value for each in node.keywords)]
            plain = [
                isinstance(value, ast.Constant) and not str(value.value).startswith(".")
                for value in values
            ]
            lines += [] if all(plain) else [node.lineno]
    return lines


def goes_up(module, text):
    """Modules of higher layers that a file of this name and text would import."""
    here = room_of(module)
    rooms = {other: room_of(other) for other in imports_in(text, everywhere=True) & set(MODULES)}
    return [
        other
        for other, there in rooms.items()
        if None not in (here, there) and FLOOR[there] > FLOOR[here]
    ]


def has_code(path):
    return any(
        isinstance(node, ast.ClassDef | ast.FunctionDef)
        for node in ast.parse(path.read_text()).body
    )


def test_imports_only_point_down():
    for module, path in MODULES.items():
        if module not in DYNAMIC:
            text = path.read_text(encoding="utf-8")
            assert goes_up(module, text) == [], module
            assert computed_imports(text) == [], (
                f"{module}: a dynamic import that is not listed in DYNAMIC"
            )


@pytest.mark.parametrize(
    "text",
    [
        "def f():\n    from tespec.datasets import folder",
        "from importlib import import_module\nimport_module('tespec.datasets.folder')",
        "import importlib\ndef f():\n    return importlib.import_module('tespec.datasets')",
        "__import__('tespec.runs.data')",
        "READERS = {'dsec': 'tespec.datasets.dsec:reader'}",
        "def f(name):\n    return importlib.import_module(f'tespec.{name}')",
        "from importlib import import_module as load\nload('tespec.' + 'datasets')",
        "from ..datasets import folder",
        "importlib.import_module('..datasets', package='tespec.events')",
    ],
)
def test_an_import_upwards_is_seen_in_every_form(text):
    assert goes_up("tespec.events.packing", text) or computed_imports(text)


def test_data_sets_know_no_methods():
    for module, path in MODULES.items():
        if room_of(module) == "datasets":
            imports = (
                node
                for node in nodes_of(path.read_text(encoding="utf-8"))
                if isinstance(node, ast.ImportFrom) and node.module == "tespec.registry"
            )
            names = {each.name for node in imports for each in node.names}
            assert names <= {"DATASETS", "find_registered"}, module


def test_modules_import_each_other_in_no_circle():
    graph = {
        module: imports_of(path, everywhere=False) & set(MODULES) - {module}
        for module, path in MODULES.items()
    }
    # An `__init__.py` without code only re-exports names, so the package's modules may import each
    # other through it.
    packages = {
        module
        for module, path in MODULES.items()
        if path.name == "__init__.py" and not has_code(path)
    }
    TopologicalSorter({module: used - packages for module, used in graph.items()}).prepare()


def test_what_only_reads_records_needs_no_torch():
    heavy = {"torch", "timm", "mmengine", "mmdet", "mmseg"}
    for module in MODULES:
        if room_of(module) in ("comparison", "report", "plan", "cli"):
            used = {
                name.partition(".")[0] for name in imports_of(MODULES[module], everywhere=False)
            }
            assert not used & heavy, module
