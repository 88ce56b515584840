"""Checks of option values and arguments. Standard library only."""

import math
import operator
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from functools import wraps
from inspect import Parameter, signature
from numbers import Integral, Real
from os import PathLike
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, ParamSpec, TypeVar, Union, dataclass_transform, get_args, get_origin, get_type_hints

from yolo_lightning.errors import UserError
from yolo_lightning.utils.plain_text import one_line
from yolo_lightning.utils.suggestions import SYNONYMS, did_you_mean, nearest_key, similar

Settings = TypeVar("Settings")
P = ParamSpec("P")
T = TypeVar("T")
LONGEST_VALUE = 200  # characters of a value in a message
TYPES: dict[Any, tuple[Any, str]] = {
    int: (Integral, "an integer"),
    float: (Real, "a number"),
    bool: (bool, "true or false"),
    str: ((str, PathLike), "a text"),
    **dict.fromkeys((tuple, list, Sequence), ((tuple, list), "a list")),
    dict: (dict, "a dictionary"),
    NoneType: (NoneType, "null"),
    **dict.fromkeys((Path, PathLike), ((str, PathLike), "a path")),
    Callable: (Callable, "a class path"),
}
"""Accepted values of an annotated type, and their name."""

CLASSES = {"data": "DetectionDataModule", "model": "YOLOModule", "trainer": "Trainer"}
"""Classes of Python whose arguments are the options of a section."""

AUTO: Literal["auto"] = "auto"
"""Value of an option that follows the machine or the data."""

COMPARISONS = {">=": operator.ge, ">": operator.gt, "<=": operator.le, "<": operator.lt}


def check_choices(name: str, values: Iterable[str], choices: Any) -> None:
    """Raise a UserError if one of the values is not in `choices`, a `Literal`; `name` is the full option name."""
    for value in values:
        if value not in get_args(choices):
            raise UserError(f"{name} must be one of {', '.join(get_args(choices))}, got {value!r}")


def as_settings(group: type[Settings], value: Settings | Mapping[str, Any]) -> Settings:
    """Return a group of settings, which a checkpoint stores as a dictionary; raise a ValueError for unknown names."""
    if not isinstance(value, Mapping):
        return value
    names = [setting.name for setting in fields(group)]  # type: ignore[arg-type]
    for name in value.keys() - names:
        raise UserError(f"{group.__name__} has no setting {name!r}{did_you_mean(similar(str(name), names))}")
    return group(**value)


def plain(value: Any) -> Any:
    """Return a number or text of NumPy as one of Python, which a checkpoint can contain; others are unchanged."""
    types: dict[Any, Any] = {bool: bool, Integral: int, Real: float, str: str}
    for abstract, builtin in types.items():
        if isinstance(value, abstract):
            return builtin(value)
    return value


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def settings_group(key: str, **limits: str) -> Callable[[type[Settings]], type[Settings]]:
    """Return a decorator for a frozen dataclass of the options `key.*`; see `checked_arguments`."""

    def decorated(group: Any) -> Any:
        settings = dataclass(frozen=True)(group)
        settings.__init__ = checked_arguments(key, **limits)(settings.__init__)
        return settings

    return decorated


def checked_arguments(
    key: str = "", unchecked: Collection[str] = (), **limits: str
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Return a decorator that checks names and types of arguments, and the limits of numbers, such as `>= 0, < 1`.

    The limits do not concern `auto` and null. `key` or else the function's name is the prefix of the names in messages.
    The function receives groups of settings in place of dictionaries, and numbers of Python in place of NumPy's.
    """

    def decorated(function: Callable[P, T]) -> Callable[P, T]:
        form = signature(function)
        owner = function.__qualname__.removesuffix(".__init__")
        prefix = key or owner
        names = [name for name in form.parameters if name != "self"]
        accepts_all = any(parameter.kind is Parameter.VAR_KEYWORD for parameter in form.parameters.values())

        @wraps(function)
        def call(*arguments: P.args, **options: P.kwargs) -> T:
            unknown = options.keys() - form.parameters
            if unknown and not accepts_all:
                name = min(unknown)
                meant = did_you_mean(_nearest_argument(name, function))
                raise TypeError(f"{owner} has no argument {name!r}{meant} The arguments are {', '.join(names)}.")
            try:
                bound = form.bind(*arguments, **options)
            except TypeError:  # the function itself reports a missing argument
                return function(*arguments, **options)
            values = bound.arguments
            check_types(prefix, function, {name: values[name] for name in values.keys() - set(unchecked)})
            for name, limit in limits.items():
                if values.get(name) not in (None, AUTO):
                    accepted = _alternatives(form.parameters[name].annotation)
                    others = {"or_null": NoneType in accepted, "or_auto": Literal["auto"] in accepted}
                    check_range(f"{prefix}.{name}", values[name], *limit.split(", "), **others)
            hints = get_type_hints(function)
            for name, value in values.items():
                values[name] = plain(value)
                groups: list[Any] = [hint for hint in _alternatives(hints.get(name)) if is_dataclass(hint)]
                for group in groups:
                    values[name] = as_settings(group, value)
            return function(*bound.args, **bound.kwargs)

        call.__signature__ = form  # type: ignore[attr-defined]  # Lightning uses inspect.getfullargspec
        return call

    return decorated


def _nearest_argument(name: str, function: Callable[..., Any]) -> list[str]:
    """Return the argument that most likely was meant, as written in a call, or no argument.

    The argument can be a field of a group of settings: `detections=DetectionSettings(score_threshold=...)`.
    """
    forms = dict(_call_forms(function))
    nearest = nearest_key(name, forms)
    if nearest is not None:
        return [forms[nearest]]
    section, _, argument = SYNONYMS.get(name, ("",))[-1].partition(".")
    return [f"{argument} of {CLASSES[section]}"] if section in CLASSES else []


def _call_forms(annotated: Any) -> Iterator[tuple[str, str]]:
    """Yield the key of each argument, and of each field of groups of settings, with its form in a call."""
    for name, hint in get_type_hints(annotated).items():
        if name != "return":
            yield name, name
        for group in _alternatives(hint):
            if not (isinstance(group, type) and is_dataclass(group)):
                continue
            for key, form in _call_forms(group):
                value = form if form.endswith(")") else f"{form}=..."
                yield f"{name}.{key}", f"{name}={group.__name__}({value})"


def check_types(key: str, annotated: Any, values: Mapping[str, Any]) -> None:
    """Raise a UserError if a value has another type than its name in a function, a class or a dictionary of types."""
    hints = annotated if isinstance(annotated, Mapping) else get_type_hints(annotated)
    for name, hint in hints.items():
        if name in values and not _has_type(values[name], hint):
            got = one_line(repr(values[name]), LONGEST_VALUE)
            raise UserError(f"{key}.{name} must be {_accepted(hint)}, got {got}")


def _accepted(hint: Any) -> str:
    names: list[str] = []
    for alternative in _alternatives(hint):
        origin = get_origin(alternative) or alternative
        elements = get_args(alternative)
        if origin is Literal:
            names += map(str, elements)
            continue
        name = TYPES.get(origin, (origin, getattr(origin, "__name__", "")))[1]
        if name == "a list" and elements:
            name += " of " + re.sub(r"\ban? (\w+)", r"\1s", _accepted(elements[0])).replace("ys", "ies")
        names.append(name)
    return " or ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _alternatives(hint: Any) -> tuple[Any, ...]:
    if get_origin(hint) in (Union, UnionType):
        return get_args(hint)
    return (hint,)


def _has_type(value: Any, hint: Any) -> bool:
    alternatives = _alternatives(hint)
    if len(alternatives) > 1:
        return any(_has_type(value, alternative) for alternative in alternatives)
    origin = get_origin(hint) or hint
    elements = get_args(hint)
    if origin is Literal:
        return any(type(value) is type(element) and value == element for element in elements)
    if origin is Any or (is_dataclass(origin) and isinstance(value, Mapping)):
        return True
    if isinstance(value, bool) and origin in (int, float):
        return False
    accepted, _ = TYPES.get(origin, (origin, ""))
    if not isinstance(value, accepted):
        return False
    return origin not in (tuple, list, Sequence) or all(_has_type(member, elements[0]) for member in value)


def check_range(name: str, value: Any, *limits: str, or_null: bool = False, or_auto: bool = False) -> None:
    """Raise a UserError unless the value is a finite number that satisfies all limits, such as `>= 0` or `< 1`."""
    accepted = " and ".join(limits)
    if or_auto:
        accepted += " or auto"
    if or_null:
        accepted += " or null"
    if isinstance(value, bool) or not isinstance(value, Real) or math.isinf(value):
        prefix = "the text " if isinstance(value, str) else ""
        raise UserError(f"{name} must be a number {accepted}, got {prefix}{value!r}")
    for limit in limits:
        sign, bound = limit.split()
        if not COMPARISONS[sign](value, float(bound)):
            raise UserError(f"{name} must be {accepted}, got {value!r}")


def check_state(owner: Any, state: Any, names: Iterable[str]) -> None:
    """Raise a UserError if a state without one of the names is loaded into a callback."""
    absent = ", ".join(sorted(set(names) - set(state)))
    if absent:
        raise UserError(
            f"the state of {type(owner).__name__} must be a result of its state_dict(), {absent} are missing"
        )
