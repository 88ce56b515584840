"""Stub of the package apprise: `json://` addresses, with the options that `json_address` uses."""

import json
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit
from urllib.request import Request, urlopen


class Apprise:
    def __init__(self) -> None:
        self._address = ""

    def add(self, address: str) -> bool:
        self._address = address
        return urlsplit(address).scheme == "json"

    def notify(self, *, title: str, body: str) -> bool:
        content = {"version": "1.0", "title": title, "message": body, "attachments": [], "type": "info"}
        parts, parameters = urlsplit(self._address), {}
        for name, value in parse_qsl(parts.query):
            if name[0] == ":":
                content[value] = content.pop(name[1:])
            elif name[0] == "-":
                parameters[name[1:]] = value
        url = urlunsplit(("http", parts.netloc, parts.path, urlencode(parameters), ""))
        headers = {"Content-Type": "application/json"}
        try:
            with urlopen(Request(url, json.dumps(content).encode(), headers), timeout=4.0):
                return True
        except OSError:
            return False
