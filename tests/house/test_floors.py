"""The house stands: imports run downward, no room knows a neighbor on its floor, public names are exported."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import clearhead

SOURCE = Path(clearhead.__file__).parent
FLOORS = [
    {"allocator", "lazy", "pages", "suggestions", "wording"},
    {"errors"},
    {"options", "files"},
    {"cache"},
    {"config", "reference"},
    {"parts", "doctor"},
    {"models"},
    {"data", "interop", "native"},
    {"inference", "training"},
    {"inspection"},
    {"workflows"},
    {"server"},
    {"cli"},
    {"__main__"},
]
FLOOR_OF = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}
ON_THE_SAME_FLOOR = {("reference", "config")}  # a config says what the twin computes


def room_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported_rooms(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, "imports are absolute"
            head, _, rest = node.module.partition(".")
            if head == "clearhead":
                yield from [rest.split(".")[0]] if rest else [alias.name for alias in node.names]
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.startswith("clearhead."):
                    yield alias.name.split(".")[1]


def folders_known_to(folder: Path) -> set[str]:
    """The folders beside it whose modules it imports."""
    package = ".".join(("clearhead", *folder.parent.relative_to(SOURCE).parts))
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in folder.rglob("*.py")]
    modules = [node.module for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    inside = [module.removeprefix(f"{package}.") for module in modules if module and module.startswith(f"{package}.")]
    return {module.partition(".")[0] for module in inside} - {folder.name}


FILES = sorted(path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py")


def test_imports_run_strictly_downward() -> None:
    wrong = []
    for path in FILES:
        room = room_of(path)
        for imported in imported_rooms(ast.parse(path.read_text(encoding="utf-8"))):
            if imported in ("__version__", room) or (room, imported) in ON_THE_SAME_FLOOR:
                continue
            if FLOOR_OF[imported] >= FLOOR_OF[room]:
                wrong.append(f"{path.relative_to(SOURCE)}: {room} must not know {imported}")
    assert not wrong, "\n".join(wrong)


def test_no_two_folders_of_the_doctors_checks_know_each_other() -> None:
    checks = SOURCE / "doctor" / "checks"
    known = {folder.name: folders_known_to(folder) for folder in checks.iterdir() if (folder / "__init__.py").is_file()}
    assert known["dependence"] >= {"padding", "parts"}
    circles = {
        (folder_name, neighbor)
        for folder_name, others in known.items()
        for neighbor in others
        if folder_name in known.get(neighbor, ())
    }
    assert not circles


@pytest.mark.parametrize("room", [path.name for path in SOURCE.iterdir() if (path / "__init__.py").is_file()])
def test_every_room_stands_on_a_floor(room: str) -> None:
    assert room in FLOOR_OF


def test_a_file_fits_on_a_few_screens() -> None:
    lines = {str(path.relative_to(SOURCE)): path.read_text(encoding="utf-8").count("\n") for path in FILES}
    long = {path: count for path, count in lines.items() if count > 320}
    assert not long, "a room is missing"


def test_torch_is_not_loaded_by_the_import_the_config_or_the_help() -> None:
    import subprocess
    import sys

    program = (
        "import sys, clearhead, clearhead.config, clearhead.config.presets, clearhead.cli.train as train\n"
        "train.parser().format_help()\n"
        "heavy = {'torch', 'transformers', 'numpy'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "assert clearhead.cli.run(['--help']) == 0\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, timeout=100)


def test_training_loads_no_more_than_it_needs() -> None:
    import subprocess
    import sys

    program = (
        "import sys, clearhead.training\n"
        "loaded = [name for name in sys.modules if name.partition('.')[0] == 'clearhead']\n"
        "assert len(loaded) <= 63, sorted(loaded)\n"
        "assert not [name for name in loaded if name.startswith(('clearhead.inference', 'clearhead.native'))], loaded\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr


def test_the_export_list_is_exactly_the_public_names() -> None:
    for name in clearhead.__all__:
        assert getattr(clearhead, name) is not None
    assert sorted(clearhead.__all__) == clearhead.__all__
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = clearhead.nonsense


LAZY = [path for path in [*FILES, SOURCE / "__init__.py"] if "= attach(" in path.read_text(encoding="utf-8")]


@pytest.mark.parametrize("path", LAZY, ids=lambda path: str(path.relative_to(SOURCE)))
def test_what_editors_see_of_a_package_is_what_it_exports(path: Path) -> None:
    package = ".".join(("clearhead", *path.parent.relative_to(SOURCE).parts))
    tree = ast.parse(path.read_text(encoding="utf-8"))
    [block] = [node for node in tree.body if isinstance(node, ast.If)]
    shown = [(node.module, name.name) for node in block.body if isinstance(node, ast.ImportFrom) for name in node.names]
    [table] = [node for node in ast.walk(tree) if isinstance(node, ast.Dict)]
    exports = {f"{package}.{module}": names for module, names in ast.literal_eval(table).items()}
    submodules = [
        (package, name)
        for call in ast.walk(tree)
        if isinstance(call, ast.Call)
        for keyword in call.keywords
        if keyword.arg == "submodules"
        for name in ast.literal_eval(keyword.value)
    ]
    attached = [(module, name) for module, names in exports.items() for name in names]
    assert len(LAZY) >= 4
    assert sorted(shown) == sorted(attached + submodules)


MODULE_OF = {
    ".".join(("clearhead", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in [*FILES, SOURCE / "__init__.py"]
}


def _is_for_type_checkers(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def imported_names(tree: ast.AST) -> Iterator[str]:
    """Every dotted name that is imported, at the top or inside a function, but not for type checkers alone."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif not _is_for_type_checkers(node):
            yield from imported_names(node)


def lazily_exported(package: ast.Module) -> dict[str, str]:
    """The names that a package loads when they are touched, and the module of each."""
    blocks = [node for node in package.body if _is_for_type_checkers(node)]
    imports = [node for block in blocks for node in ast.walk(block) if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(node.module) for node in imports for alias in node.names}


def imports_of(tree: ast.Module, lazy: dict[str, dict[str, str]]) -> set[str]:
    """The modules of ours that a module imports; where a name is loaded lazily, the module that it is loaded from."""
    modules = set()
    for name in imported_names(tree):
        holder, _, attribute = name.rpartition(".")
        holder = name if name in MODULE_OF else lazy.get(holder, {}).get(attribute, holder)
        modules |= {holder} & MODULE_OF.keys()
    return modules


def circles_of(known: dict[str, set[str]]) -> list[set[str]]:
    """The sets of modules that reach one another."""
    reached = {start: _reachable(start, known) for start in known}
    circles = {frozenset(other for other in reached[start] if start in reached[other]) for start in known}
    return sorted((set(circle) for circle in circles if circle), key=sorted)


def _reachable(start: str, known: dict[str, set[str]]) -> set[str]:
    reached: set[str] = set()
    waiting = [start]
    while waiting:
        new = known[waiting.pop()] - reached
        reached |= new
        waiting += new
    return reached


def test_no_modules_import_each_other_in_a_circle() -> None:
    trees = {module: ast.parse(path.read_text(encoding="utf-8")) for module, path in MODULE_OF.items()}
    lazy = {module: lazily_exported(tree) for module, tree in trees.items() if MODULE_OF[module] in LAZY}
    circles = circles_of({module: imports_of(tree, lazy) - {module} for module, tree in trees.items()})
    assert circles == []


def test_a_public_class_has_a_name_of_its_own() -> None:
    modules_of: dict[str, list[str]] = {}
    for module, path in MODULE_OF.items():
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                modules_of.setdefault(node.name, []).append(module)
    assert {name: modules for name, modules in modules_of.items() if len(modules) > 1} == {}
