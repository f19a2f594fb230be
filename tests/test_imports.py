"""The way through the house is one-way: imports only point to what stands before."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import fedaws

SOURCE = Path(fedaws.__file__).parent

# From the words that everybody uses to the command line: a part imports only from parts in rows above its own.
ORDER: list[set[str]] = [
    {"errors", "types", "sparse", "hashing", "presets", "device"},
    {"files"},
    {"config", "tensor_files"},
    {"machine"},
    {"core", "data", "models"},
    {"privacy"},
    {"runners", "evaluate"},
    {"record"},
    {"ranks"},
    {"training"},
    {"people", "audit"},
    {"report"},
    {"experiments"},
    {"flower"},
    {"cli"},
    {"__init__", "__main__"},
]
ROW = {part: row for row, parts in enumerate(ORDER) for part in parts}


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def part_of(module: str) -> str:
    """`fedaws.core.local` → `core`; the package itself → `__init__`."""
    return module.split(".")[1] if "." in module else "__init__"


def imported_modules(path: Path) -> set[str]:
    """The modules of ours that a file imports, also inside functions."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            found |= {submodule_or_module(node.module or "", alias.name) for alias in node.names}
    return {name for name in found if name.split(".")[0] == "fedaws"}


def submodule_or_module(module: str, name: str) -> str:
    """What `from module import name` loads."""
    path = SOURCE.parent.joinpath(*module.split("."), name)
    return f"{module}.{name}" if path.with_suffix(".py").exists() or path.is_dir() else module


FILES = sorted(SOURCE.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=module_name)
def test_a_module_imports_only_what_stands_before_it(path: Path) -> None:
    part = part_of(module_name(path))
    assert part in ROW, f"say in {Path(__file__).name} where {part} stands"
    others = {name for name in imported_modules(path) if part_of(name) != part}
    beyond = {name for name in others if ROW[part_of(name)] >= ROW[part]}
    assert not beyond, f"{module_name(path)} imports {sorted(beyond)}"


def test_no_two_modules_import_each_other() -> None:
    packages = {module_name(path) for path in FILES if path.name == "__init__.py"}
    # A package's front page collects its modules; they import each other past it.
    graph = {module_name(path): imported_modules(path) - packages for path in FILES}
    list(TopologicalSorter(graph).static_order())  # raises CycleError


def test_the_walk_sees_imports_of_submodules_and_inside_functions(tmp_path: Path) -> None:
    path = tmp_path / "example.py"
    path.write_text("from fedaws import config\ndef f():\n    from fedaws.core.local import embed\nimport torch\n")
    assert imported_modules(path) == {"fedaws.config", "fedaws.core.local"}
