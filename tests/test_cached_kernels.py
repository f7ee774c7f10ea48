"""What numba keeps of a kernel is used again while the kernel's own file is unchanged: nothing else may be baked in."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import tespec

FILES = sorted(Path(tespec.__file__).parent.rglob("*.py"))
LIBRARIES = {"math", "numpy", "numba"}  # which do not change under a cache: numba keeps one for each of its versions


def is_cached(function: ast.FunctionDef) -> bool:
    return any("njit" in ast.unparse(each) and "cache=True" in ast.unparse(each) for each in function.decorator_list)


def imported(tree: ast.Module) -> set[str]:
    """Names that come from other files, or are computed of those that do."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {each.asname or each.name.split(".")[0] for each in node.names if each.name not in LIBRARIES}
        elif isinstance(node, ast.ImportFrom) and node.module not in LIBRARIES:
            names |= {each.asname or each.name for each in node.names}
    while True:
        found = set(names)
        for node in tree.body:
            if isinstance(node, ast.Assign) and read(node.value) & found:
                found |= {each.id for target in node.targets for each in ast.walk(target) if isinstance(each, ast.Name)}
        if found == names:
            return names
        names = found


def read(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load)}


def baked_in(source: str) -> list[str]:
    """ "kernel reads name" for each name of another file in a cached kernel; annotations and arguments are none."""
    tree = ast.parse(source)
    others, found = imported(tree), []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and is_cached(node):
            arguments = {each.arg for each in ast.walk(node.args) if isinstance(each, ast.arg)}
            names = set().union(*(read(statement) for statement in node.body)) - arguments
            found += [f"{node.name} reads {name}" for name in sorted(names & others)]
    return found


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("from a import N\n@njit(cache=True)\ndef f(x):\n    return x + N\n", ["f reads N"]),
        ("import a.b\n@njit(cache=True)\ndef f(x):\n    return x + a.b.N\n", ["f reads a"]),
        ("from a import N\nM = 2 * N\n@njit(cache=True)\ndef f(x):\n    return x + M\n", ["f reads M"]),
        ("from a import N\n@njit(cache=True)\ndef f(x: N, N) -> N:\n    return x + N\n", []),
        ("from a import N\nM = 2\n@njit(cache=True)\ndef f(x):\n    return x + M\n", []),
        ("from a import N\n@njit\ndef f(x):\n    return x + N\n", []),
    ],
)
def test_such_names_are_found(source: str, found: list[str]) -> None:
    assert baked_in(source) == found


def test_no_cached_kernel_reads_a_name_of_another_file() -> None:
    kernels = [path for path in FILES if "njit(cache=True" in path.read_text()]
    assert len(kernels) > 6
    assert {path.name: baked_in(path.read_text()) for path in kernels} == {path.name: [] for path in kernels}
