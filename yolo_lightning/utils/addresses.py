"""Addresses that contain credentials: where they may be written, and how they are shown.

Whoever has such an address can use it. A command line is visible to all users of the machine, and a log or a report is
passed on. Standard library only.
"""

import os
import re
from collections.abc import Sequence
from itertools import pairwise
from urllib.parse import urlsplit

from yolo_lightning.errors import UserError

REFERENCE = re.compile(r"\$(\w+)")  # name of an environment variable in place of an address
HIDDEN = "***"
ADDRESS = re.compile(r"\b([a-zA-Z][a-zA-Z0-9+.-]*://)([^\s\"'<>?#\\]*)([?#][^\s\"'<>\\]*)?")
TOKEN = re.compile(r"(?<=/)(?=[^/]*\d)[A-Za-z0-9_-]{16,}(?![^/}\]),;])")  # part of a path that is no word
WEB = ("http://", "https://")
STORES = re.compile(
    "file|local|memory|s3a?|gs|gcs|az|abfss?|adl|sftp|ssh|ftps?|smb|(web)?hdfs|oss|oci|hf|https?|tcp|jsons?|sqlite|mysql"
    "|postgresql"
)
"""Schemes whose host is no credential. Those of notifications, as `tgram://TOKEN/CHAT`, have a token in its place."""

SECRET = re.compile(r"password|passwd|token|secret|credential|(^|_|api)key$", re.IGNORECASE)
"""Names of options and environment variables, such as those of loggers, whose values are neither stored nor shown."""

SECRET_OPTIONS = re.compile(r"\b(webhook|ping|mirror)\b")


def redacted(text: str) -> str:
    """Return a text in which user names, passwords, query strings and tokens in paths of addresses are hidden."""
    return ADDRESS.sub(hide, text) if "://" in text else text


def hide(address: re.Match[str]) -> str:
    scheme, place, query = address.groups()
    host, slash, path = place.partition("/")
    user, at, host = host.rpartition("@")
    if not user and not STORES.fullmatch(scheme.lower().removesuffix("://")):
        return f"{scheme}{HIDDEN}"
    path = slash + path
    if scheme.lower() in WEB:
        path = TOKEN.sub(HIDDEN, path)
    if user:
        user = HIDDEN
    if query:
        path += query[0] + HIDDEN
    return f"{scheme}{user}{at}{host}{path}"


def resolved(address: str) -> str:
    """Return an address; `$NAME` is replaced by the environment variable. A missing variable is a ValueError."""
    match = REFERENCE.fullmatch(address)
    if match is None:
        return address
    value = os.environ.get(match[1])
    if not value:
        raise UserError(f"the address is ${match[1]}, but the environment variable {match[1]} is not set")
    return value


def refuse_secrets(words: Sequence[str]) -> None:
    """Raise a UserError if a command line contains an address with credentials; the message does not contain it."""
    for word, following in pairwise([*words, ""]):
        name = ""
        value = word
        if word.startswith("-"):
            name, equals, value = word.partition("=")
            if not equals:
                value = following
        # Also within a value, as of --supervision '{notify: {webhook: ...}}'; JSON and YAML can write a slash as \\/.
        addresses = [match[0] for match in ADDRESS.finditer(value.replace("\\/", "/"))]
        hidden = [redacted(address) for address in addresses]
        is_secret = hidden != addresses and SECRET_OPTIONS.search(f"{name} {value}")
        if is_secret or any(map(_has_password, [value, *addresses])):
            option = name or "an argument"
            raise UserError(
                f"{option} must not contain credentials, because all users of the machine can read a command line. "
                f"Put the address into an environment variable and write $NAME in its place, as {name or 'OPTION'}="
                "'$NAME'; or write it into a configuration file"
            )


def _has_password(value: str) -> bool:
    try:
        return "://" in value and urlsplit(value).password is not None
    except ValueError:
        return False
