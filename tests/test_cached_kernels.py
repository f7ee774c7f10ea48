"""numba reuses a kernel while its file is unchanged: kernels read no names of other files."""

import ast

from tespec.core.paths import REPOSITORY

FILES = sorted((REPOSITORY / "tespec").rglob("*.py"))
LIBRARIES = {"math", "numpy", "numba"}  # safe to read: numba keeps a cache for each of its versions


def is_cached(function):
    decorators = [ast.unparse(decorator) for decorator in function.decorator_list]
    return any("njit" in text and "cache=True" in text for text in decorators)


def names(node):
    nodes = [name for name in ast.walk(node) if isinstance(name, ast.Name)]
    return {name.id for name in nodes if isinstance(name.ctx, ast.Load)}


def baked_in(source):
    """List "kernel reads name" of cached kernels, for names from other files."""
    tree = ast.parse(source)
    others = set()
    readings = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules = [module for module in node.names if module.name not in LIBRARIES]
            others |= {module.asname or module.name.split(".")[0] for module in modules}
        elif isinstance(node, ast.ImportFrom) and node.module not in LIBRARIES:
            others |= {name.asname or name.name for name in node.names}
    for node in tree.body:
        if isinstance(node, ast.Assign) and names(node.value) & others:
            targets = [name for target in node.targets for name in ast.walk(target)]
            others |= {name.id for name in targets if isinstance(name, ast.Name)}
        if isinstance(node, ast.FunctionDef) and is_cached(node):
            arguments = {arg.arg for arg in ast.walk(node.args) if isinstance(arg, ast.arg)}
            read = set().union(*map(names, node.body)) - arguments
            readings += [f"{node.name} reads {name}" for name in sorted(read & others)]
    return readings


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
