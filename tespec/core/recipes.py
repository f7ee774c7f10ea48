"""Recipes of pre-training: YAML texts that stand in the methods' own Python files, read without running them."""

from __future__ import annotations

import ast
import importlib.machinery
import sys
from collections.abc import Iterator, Mapping
from functools import lru_cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from tespec.core.errors import UserError
from tespec.core.files import UNREADABLE, parse_yaml
from tespec.core.paths import BASELINES, PACKAGE

ENTRY_POINTS = "tespec.methods"
CONSTANT = "RECIPE"
_imported: list[Path] = []


class Recipe(NamedTuple):
    """What a file says: settings by name as they are at the paper's size, and what differs under profiles.

    `facts["objective"]` is either a mapping with "type" and settings, or the type of an objective whose settings stand
    in another file. A file without `name` in its facts gives the settings of an objective alone.
    """

    file: Path
    facts: dict[str, Any]
    profiles: dict[str, dict[str, Any]]

    @property
    def objective(self) -> str:
        """Type of its objective."""
        objective = self.facts["objective"]
        return str(objective["type"] if isinstance(objective, Mapping) else objective)

    @property
    def gives_objective(self) -> bool:
        """Whether the objective's settings stand in this file."""
        return isinstance(self.facts["objective"], Mapping)


def add_recipe(file: Path) -> None:
    """Read a file that the user imports as well."""
    if (path := file.resolve()) not in _imported:
        _imported.append(path)


def all_recipes() -> list[Recipe]:
    """What each file says: those of `baselines/` and TESPEC's own, of installed packages, and of imported files.

    Raises:
        UserError: a text is not literal, not YAML or not a recipe, or two have one name.
    """
    found = [recipe for file in dict.fromkeys(_files()) if (recipe := _read(file)) is not None]
    of_name: dict[str, Path] = {}
    for recipe in found:
        name = recipe.facts.get("name")
        if name in of_name:
            raise UserError(recipe.file, f"{of_name[name]} has a recipe {name!r} already", "rename one of them")
        if name is not None:
            of_name[name] = recipe.file
    return found


def recipes() -> dict[str, Recipe]:
    """Recipes by name.

    Raises:
        UserError: see `all_recipes`.
    """
    return {recipe.facts["name"]: recipe for recipe in all_recipes() if "name" in recipe.facts}


def _files() -> Iterator[Path]:
    for folder in (BASELINES, PACKAGE / "pretraining"):
        yield from sorted(folder.resolve().glob("*.py"))
    yield from _installed(tuple(sys.path))
    yield from _imported


@lru_cache
def _installed(_path: tuple[str, ...]) -> tuple[Path, ...]:
    """Files of the packages that offer methods, found along `sys.path`."""
    return tuple(file for entry in entry_points(group=ENTRY_POINTS) for file in _files_of(entry.module))


def _files_of(module: str) -> list[Path]:
    """The file of a module, or all those of a package; none is run, as importing one would."""
    places: Any = None
    name = ""
    for part in module.split("."):
        name = f"{name}.{part}" if name else part
        found = (finder.find_spec(name, places) for finder in sys.meta_path if hasattr(finder, "find_spec"))
        spec: importlib.machinery.ModuleSpec | None = next((each for each in found if each is not None), None)
        if spec is None:
            return []
        places = spec.submodule_search_locations
    if places is not None:
        return [path for place in places for path in sorted(Path(place).resolve().glob("*.py"))]
    return [Path(spec.origin).resolve()] if spec is not None and spec.origin else []


def _read(file: Path) -> Recipe | None:
    try:
        stat = file.stat()
        return _parse(file, stat.st_mtime_ns, stat.st_size)
    except (OSError, SyntaxError, ValueError) as error:
        raise UserError(file, f"not a Python file ({error})", "mend or restore it") from error


@lru_cache
def _parse(file: Path, _changed: int, _size: int) -> Recipe | None:
    """What a file says, which its time of change and its size tell from what it said before; None for nothing."""
    source = file.read_bytes()
    if CONSTANT.encode() not in source:
        return None
    texts = [value for node in ast.parse(source).body if (value := _assigned(node)) is not None]
    if not texts:
        return None
    if len(texts) > 1:
        raise UserError(f"{file}, line {texts[1].lineno}", f"{CONSTANT} is set twice", "keep one of them")
    (text,) = texts
    where = f"{file}, line {text.lineno}"
    if not isinstance(text, ast.Constant) or not isinstance(text.value, str):
        raise UserError(where, f"{CONSTANT} is no literal text", f'write {CONSTANT} = """..."""')
    try:
        facts = parse_yaml(text.value)
    except UNREADABLE as error:
        raise UserError(*_not_yaml(file, text.lineno, error)) from error
    return _checked(file, where, facts)


def _assigned(node: ast.stmt) -> ast.expr | None:
    """What a statement gives to `RECIPE`; None for other statements."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    named = any(isinstance(target, ast.Name) and target.id == CONSTANT for target in targets)
    return node.value if named and isinstance(node, ast.Assign | ast.AnnAssign) else None


def _not_yaml(file: Path, first: int, error: BaseException) -> tuple[str, str, str]:
    cause = error.__cause__
    mark = getattr(cause, "problem_mark", None) if isinstance(cause, yaml.MarkedYAMLError) else None
    problem = getattr(cause, "problem", None) or error
    line = first + (mark.line if mark is not None else 0)
    return f"{file}, line {line}", f"{CONSTANT} is not YAML ({problem})", "mend it"


def _checked(file: Path, where: str, facts: Any) -> Recipe:
    def require(right: bool, what: str, remedy: str) -> None:
        if not right:
            raise UserError(where, f"{CONSTANT} {what}", remedy)

    named = isinstance(facts, Mapping) and all(isinstance(key, str) for key in facts)
    require(named, "holds no settings by name", "write `name: ...` and the settings of a pre-training")
    profiles = facts.pop("profiles", None) or {}
    require(isinstance(facts.get("name", ""), str), "has a name that is no text", "quote it")
    groups = isinstance(profiles, Mapping) and all(isinstance(each, Mapping) for each in profiles.values())
    require(groups, "has profiles that are no groups of settings", "write `profiles: {sample: {batch_size: 4}}`")
    objective = facts.get("objective")
    own = isinstance(objective, Mapping) and isinstance(objective.get("type"), str)
    given = own or (isinstance(objective, str) and "name" in facts)
    require(given, "names no objective", "write `objective: {type: NAME, ...}` with its settings")
    return Recipe(file, dict(facts), {str(name): dict(each) for name, each in profiles.items()})
