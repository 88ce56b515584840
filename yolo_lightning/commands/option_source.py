"""Names, values and purposes of all options, read from the source files without importing them.

Importing Lightning and torch takes seconds; `quick_answers` answers a request for help or a typo without that. The
parsers remain the authority: an option that this file accepts is still checked by them.
"""

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

PACKAGE_FOLDER = Path(__file__).resolve().parent.parent
NOT_OPTIONS = {"self", "model", "datamodule", "dataloaders", "train_dataloaders", "val_dataloaders"}
"""Arguments of the methods of the Trainer that are not options."""

OF_EVERY_SUBCOMMAND = ("config", "help", "print_config", "seed_everything")


@dataclass(frozen=True, slots=True)
class OptionSource:
    """An option as its source file states it."""

    default: str | None  # source text; None for a required option
    choices: tuple[str, ...]  # the accepted values of a Literal; empty for other types
    purpose: str  # from the docstring
    is_positional: bool = False  # whether the value is given without a name
    is_group: bool = False  # whether the options of a dataclass follow, with this name and a dot in front


def options_of_subcommand(subcommand: str) -> dict[str, OptionSource]:
    """Return the options of fit, validate, test or predict by full name."""
    trainer = _tree(_lightning_file("trainer/trainer.py"))
    found = {name: OptionSource(None, (), "") for name in OF_EVERY_SUBCOMMAND}
    for argument, default in _arguments(_function(trainer, "Trainer", subcommand)):
        if argument.arg not in NOT_OPTIONS:
            found[argument.arg] = OptionSource(default, (), "")
    for call in ast.walk(_tree(PACKAGE_FOLDER / "cli.py")):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument":
            found |= _added(call)
    found |= _of_class("trainer", _lightning_file("trainer/trainer.py"), "Trainer")
    found |= _of_class("model", PACKAGE_FOLDER / "module.py", "YOLOModule")
    return found | _of_class("data", PACKAGE_FOLDER / "data/datamodule.py", "DetectionDataModule")


def options_of_tool(name: str) -> tuple[str, dict[str, OptionSource]] | None:
    """Return purpose and options of another command; None if it has subcommands."""
    file = PACKAGE_FOLDER / "commands" / f"{name}.py"
    file = file if file.is_file() else PACKAGE_FOLDER / "commands" / name / "command.py"
    function = next((one for one in _tree(file).body if isinstance(one, ast.FunctionDef) and one.name == name), None)
    if function is None:
        return None
    docstring = ast.get_docstring(function) or ""
    purposes = _purposes(docstring)
    found: dict[str, OptionSource] = {}
    for argument, default in _arguments(function):
        if argument.arg == "data":
            found |= _of_class("data", PACKAGE_FOLDER / "data/datamodule.py", "DetectionDataModule")
            found["config"] = OptionSource("None", (), "Configuration file of a fit, for the options of `data`.")
        else:
            is_positional = bool(function.args.kwonlyargs) and argument in function.args.args and default is None
            choices, purpose = _choices(argument.annotation, file), purposes.get(argument.arg, "")
            found[argument.arg] = OptionSource(_value(default, file), choices, purpose, is_positional)
    return docstring.partition("Args:")[0].strip(), found


def accepts(options: Mapping[str, OptionSource], key: str) -> bool:
    """Return whether the parsers may accept a key: an option, a group, or a part of an option that is no group."""
    key = key.removesuffix("+").removesuffix(".help")
    parts = key.split(".")
    for length in range(len(parts), 0, -1):
        option = options.get(".".join(parts[:length]))
        if option is not None:
            return length == len(parts) or not option.is_group
    return False


def _added(call: ast.Call) -> dict[str, OptionSource]:
    """Return the options of one call of `add_argument` in cli.py."""
    names = [one.value for one in call.args if isinstance(one, ast.Constant) and str(one.value).startswith("--")]
    keywords = {one.arg: one.value for one in call.keywords}
    found: dict[str, OptionSource] = {}
    for name in (str(one).removeprefix("--") for one in names):
        found[name] = OptionSource(None, (), "")
        if (nested := _dataclass(keywords.get("type"), PACKAGE_FOLDER / "cli.py")) is not None:
            found |= _of_class(name, *nested)
    return found


def _of_class(prefix: str, file: Path, name: str) -> dict[str, OptionSource]:
    """Return the options of the arguments of a class, or of the fields of a dataclass, with those of nested ones."""
    definition = _class(_tree(file), name)
    assert definition is not None, (file, name)
    purposes = _purposes(ast.get_docstring(definition) or "")
    found = {prefix: OptionSource(None, (), "", is_group=True)}
    for field, annotation, default in _fields(definition):
        full = f"{prefix}.{field}"
        if (nested := _dataclass(annotation, file)) is not None:
            found |= _of_class(full, *nested)
        else:
            found[full] = OptionSource(_value(default, file), _choices(annotation, file), purposes.get(field, ""))
    return found


def _fields(definition: ast.ClassDef) -> Iterator[tuple[str, ast.expr | None, str | None]]:
    for one in definition.body:
        if isinstance(one, ast.FunctionDef) and one.name == "__init__":
            for argument, default in _arguments(one):
                if argument.arg != "self":
                    yield argument.arg, argument.annotation, default
        elif isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name):
            yield one.target.id, one.annotation, None if one.value is None else ast.unparse(one.value)


def _arguments(function: ast.FunctionDef) -> list[tuple[ast.arg, str | None]]:
    """Return the arguments of a function with the source text of their defaults."""
    positional = [*function.args.posonlyargs, *function.args.args]
    without = len(positional) - len(function.args.defaults)
    defaults = [*without * [None], *function.args.defaults, *function.args.kw_defaults]
    arguments = [*positional, *function.args.kwonlyargs]
    return [
        (argument, None if default is None else ast.unparse(default))
        for argument, default in zip(arguments, defaults, strict=True)
    ]


def _function(tree: ast.Module, class_name: str, name: str) -> ast.FunctionDef:
    definition = _class(tree, class_name)
    assert definition is not None
    return next(one for one in definition.body if isinstance(one, ast.FunctionDef) and one.name == name)


def _dataclass(annotation: ast.expr | None, file: Path) -> tuple[Path, str] | None:
    """Return file and name of the dataclass that an annotation names, or None for another type."""
    if not isinstance(annotation, ast.Name):
        return None
    home = _home(annotation.id, file)
    definition = None if home is None else _class(_tree(home), annotation.id)
    if home is None or definition is None:
        return None
    decorators = [ast.unparse(one) for one in definition.decorator_list]
    return (home, annotation.id) if any(one.startswith("dataclass") for one in decorators) else None


def _choices(annotation: ast.expr | None, file: Path) -> tuple[str, ...]:
    """Return the values of `Literal[...]`, of a name of one, or of `... | None`; none for other types."""
    if isinstance(annotation, ast.BinOp) and isinstance(annotation.right, ast.Constant) and not annotation.right.value:
        values = _choices(annotation.left, file)
        return (*values, "null") if values else ()
    if isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) == "Literal":
        return tuple(str(one.value) for one in ast.walk(annotation.slice) if isinstance(one, ast.Constant))
    home = _home(annotation.id, file) if isinstance(annotation, ast.Name) else None
    if home is None or not isinstance(annotation, ast.Name):
        return ()
    for one in _tree(home).body:
        if isinstance(one, ast.Assign) and [ast.unparse(target) for target in one.targets] == [annotation.id]:
            return _choices(one.value, home)
    return ()


def _value(default: str | None, file: Path) -> str | None:
    """Return a default; for the name of a constant of this package, its value."""
    home = _home(default, file) if default is not None and default.isidentifier() and default.isupper() else None
    for one in [] if home is None else _tree(home).body:
        if default in (values := _assigned(one)):
            return ast.unparse(values[default])
    return default


def _assigned(statement: ast.stmt) -> dict[str | None, ast.expr]:
    """Return the values that an assignment gives to names, by name; `A, B = 1, 2` gives two."""
    if isinstance(statement, ast.AnnAssign) and statement.value is not None:
        return {ast.unparse(statement.target): statement.value}
    found: dict[str | None, ast.expr] = {}
    for target in statement.targets if isinstance(statement, ast.Assign) else []:
        value = statement.value  # type: ignore[attr-defined]
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            found |= {ast.unparse(one): two for one, two in zip(target.elts, value.elts, strict=True)}
        else:
            found[ast.unparse(target)] = value
    return found


def _home(name: str, file: Path) -> Path | None:
    """Return the file of this package that defines a name used in `file`; None for names of other packages."""
    for one in _tree(file).body:
        if isinstance(one, ast.ImportFrom) and name in [alias.name for alias in one.names]:
            parts = (one.module or "").split(".")
            if parts[0] != PACKAGE_FOLDER.name:
                return None
            path = PACKAGE_FOLDER.joinpath(*parts[1:])
            package = path / "__init__.py"
            return _home(name, package) if package.is_file() else path.with_suffix(".py")
    return file


def _purposes(docstring: str) -> dict[str, str]:
    """Return the descriptions of the section Args or Attributes of a docstring, by name."""
    section = re.search(r"^(?:Args|Attributes):\n(.*?)(?=^\S|\Z)", docstring, re.DOTALL | re.MULTILINE)
    entries = re.findall(r"^    (\w+): (.*?)(?=^    \w|\Z)", section[1], re.DOTALL | re.MULTILINE) if section else []
    return {name: " ".join(text.split()) for name, text in entries}


def _class(tree: ast.Module, name: str) -> ast.ClassDef | None:
    return next((one for one in tree.body if isinstance(one, ast.ClassDef) and one.name == name), None)


def _lightning_file(path: str) -> Path:
    spec = find_spec("lightning")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return Path(next(iter(spec.submodule_search_locations))) / "pytorch" / path


@cache
def _tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text())
