"""Checks of option values and arguments. Standard library only."""

import math
import operator
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from functools import partial, wraps
from inspect import Parameter, signature
from numbers import Integral, Real
from os import PathLike
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, ParamSpec, TypeVar, Union, dataclass_transform, get_args, get_origin, get_type_hints

from yolo_lightning.errors import UserError
from yolo_lightning.utils.plain_text import one_line
from yolo_lightning.utils.suggestions import did_you_mean, similar

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

COMPARISONS = {">=": operator.ge, ">": operator.gt, "<=": operator.le, "<": operator.lt}


def check_choices(name: str, values: Iterable[str], choices: Any) -> None:
    """Raise a UserError if one of the values is not in `choices`, a `Literal`; `name` is the full option name."""
    for value in values:
        if value not in get_args(choices):
            raise UserError(f"{name} must be one of {', '.join(get_args(choices))}, got {value!r}")


def as_settings(kind: type[Settings], value: Settings | Mapping[str, Any]) -> Settings:
    """Return a group of settings, which a checkpoint stores as a dictionary; raise a ValueError for unknown names."""
    if not isinstance(value, Mapping):
        return value
    known = [one.name for one in fields(kind)]  # type: ignore[arg-type]
    for name in value.keys() - known:
        raise UserError(f"{kind.__name__} has no setting {name!r}{did_you_mean(similar(str(name), known))}")
    return kind(**value)


def plain(value: Any) -> Any:
    """Return a number or text of NumPy as one of Python, which a checkpoint can contain; others are unchanged."""
    kinds: tuple[tuple[Any, Any], ...] = ((bool, bool), (Integral, int), (Real, float), (str, str))
    return next((python(value) for kind, python in kinds if isinstance(value, kind)), value)


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def settings_group(key: str, **limits: str) -> Callable[[type[Settings]], type[Settings]]:
    """Return a decorator for a frozen dataclass of the options `key.*`; see `checked_arguments`."""

    def decorated(kind: Any) -> Any:
        check_values = getattr(kind, "__post_init__", lambda _: None)

        def check(self: Any) -> None:
            for name, hint in get_type_hints(kind).items():
                convert = partial(as_settings, hint) if is_dataclass(hint) else plain  # type: ignore[arg-type]
                object.__setattr__(self, name, convert(getattr(self, name)))
            check_values(self)

        kind.__post_init__ = check
        made = dataclass(frozen=True)(kind)
        made.__init__ = checked_arguments(key, **limits)(made.__init__)
        return made

    return decorated


def checked_arguments(
    key: str = "", unchecked: Collection[str] = (), **limits: str
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Return a decorator that checks names and types of arguments, and the limits of numbers, such as `>= 0, < 1`.

    `key` or else the function's name is the prefix of the names in messages.
    """

    def decorated(function: Callable[P, T]) -> Callable[P, T]:
        form, own = signature(function), function.__qualname__.removesuffix(".__init__")
        known = [one for one in form.parameters if one != "self"]
        has_others = any(one.kind is Parameter.VAR_KEYWORD for one in form.parameters.values())

        @wraps(function)
        def call(*arguments: P.args, **options: P.kwargs) -> T:
            for name in () if has_others else options.keys() - form.parameters:
                meant = did_you_mean(similar(name, known))
                raise TypeError(f"{own} has no argument {name!r}{meant} The arguments are {', '.join(known)}.")
            try:
                values = form.bind(*arguments, **options).arguments
            except TypeError:  # the function itself reports a missing argument
                return function(*arguments, **options)
            check_types(key or own, function, {name: values[name] for name in values.keys() - set(unchecked)})
            for name, limit in limits.items():
                if values.get(name) is not None:
                    accepts_null = NoneType in _alternatives(form.parameters[name].annotation)
                    check_range(f"{key or own}.{name}", values[name], *limit.split(", "), or_null=accepts_null)
            return function(*arguments, **options)

        call.__signature__ = form  # type: ignore[attr-defined]  # Lightning uses inspect.getfullargspec
        return call

    return decorated


def check_types(key: str, annotated: Any, values: Mapping[str, Any]) -> None:
    """Raise a UserError if a value has another type than its name in a function, a class or a dictionary of types."""
    for name, hint in (annotated if isinstance(annotated, Mapping) else get_type_hints(annotated)).items():
        if name in values and not _has_type(values[name], hint):
            got = one_line(repr(values[name]), LONGEST_VALUE)
            raise UserError(f"{key}.{name} must be {_accepted(hint)}, got {got}")


def _accepted(hint: Any) -> str:
    names: list[str] = []
    for one in _alternatives(hint):
        kind, elements = get_origin(one) or one, get_args(one)
        name = TYPES.get(kind, (kind, getattr(kind, "__name__", "")))[1]
        if name == "a list" and elements:
            name += " of " + re.sub(r"\ban? (\w+)", r"\1s", _accepted(elements[0])).replace("ys", "ies")
        names += map(str, elements) if kind is Literal else [name]
    return " or ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _alternatives(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def _has_type(value: Any, hint: Any) -> bool:
    if len(kinds := _alternatives(hint)) > 1:
        return any(_has_type(value, one) for one in kinds)
    kind, elements = get_origin(hint) or hint, get_args(hint)
    if kind is Literal:
        return any(type(value) is type(one) and value == one for one in elements)
    if kind is Any or (is_dataclass(kind) and isinstance(value, Mapping)):
        return True
    if isinstance(value, bool) and kind in (int, float):
        return False
    accepted, _ = TYPES.get(kind, (kind, ""))
    members = value if kind in (tuple, list, Sequence) and isinstance(value, accepted) else ()
    return isinstance(value, accepted) and all(_has_type(one, elements[0]) for one in members)


def check_range(name: str, value: Any, *limits: str, or_null: bool = False) -> None:
    """Raise a UserError unless the value is a finite number that satisfies all limits, such as `>= 0` or `< 1`."""
    accepted = " and ".join(limits) + " or null" * or_null
    if isinstance(value, bool) or not isinstance(value, Real) or math.isinf(value):
        what = "the text " if isinstance(value, str) else ""
        raise UserError(f"{name} must be a number {accepted}, got {what}{value!r}")
    for limit in limits:
        sign, bound = limit.split()
        if not COMPARISONS[sign](value, float(bound)):
            raise UserError(f"{name} must be {accepted}, got {value!r}")


def check_state(owner: Any, state: Any, names: Iterable[str]) -> None:
    """Raise a UserError if a state without one of the names is loaded into a callback."""
    if absent := ", ".join(sorted(set(names) - set(state))):
        raise UserError(
            f"the state of {type(owner).__name__} must be a result of its state_dict(), {absent} are missing"
        )
