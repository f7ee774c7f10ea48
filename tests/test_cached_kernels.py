"""numba reuses a cached kernel while its file is unchanged, so kernels must not read names of other files."""

import ast

from tespec.core.paths import REPOSITORY

FILES = sorted((REPOSITORY / "tespec").rglob("*.py"))
LIBRARIES = {"math", "numpy", "numba"}  # safe to read: numba keeps a cache for each of its versions


def is_cached(function):
    return any(
        "njit" in ast.unparse(each) and "cache=True" in ast.unparse(each)
        for each in function.decorator_list
    )


def names(node):
    return {
        each.id
        for each in ast.walk(node)
        if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load)
    }


def baked_in(source):
    """List of "kernel reads name", for names of other files and constants computed from them in cached kernels."""
    tree, others, found = ast.parse(source), set(), []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            others |= {
                each.asname or each.name.split(".")[0]
                for each in node.names
                if each.name not in LIBRARIES
            }
        elif isinstance(node, ast.ImportFrom) and node.module not in LIBRARIES:
            others |= {each.asname or each.name for each in node.names}
    for node in tree.body:
        if isinstance(node, ast.Assign) and names(node.value) & others:
            others |= {
                each.id
                for target in node.targets
                for each in ast.walk(target)
                if isinstance(each, ast.Name)
            }
        if isinstance(node, ast.FunctionDef) and is_cached(node):
            arguments = {each.arg for each in ast.walk(node.args) if isinstance(each, ast.arg)}
            read = set().union(*map(names, node.body)) - arguments
            found += [f"{node.name} reads {name}" for name in sorted(read & others)]
    return found


def test_no_cached_kernel_reads_a_name_of_another_file():
    kernel = "@njit(cache=True)\ndef f(x: K) -> K:\n    return x + N\n"
    assert (
        baked_in(f"from a import K, N\n{kernel}")
        == baked_in(f"import a\nN = 2 * a.M\n{kernel}")
        == ["f reads N"]
    )
    assert baked_in(f"from a import K\nN = 2\n{kernel}") == []
    kernels = [path for path in FILES if "njit(cache=True" in path.read_text()]
    assert len(kernels) >= 6
    assert {path.name: baked_in(path.read_text()) for path in kernels} == {
        path.name: [] for path in kernels
    }
