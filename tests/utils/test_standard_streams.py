"""Commands whose standard streams are closed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

CODE = """
import json, os, sys
from yolo_lightning.utils.standard_streams import open_closed_streams
open_closed_streams()
print("\\u00e9")
sys.stderr.write("\\u00e9")
sys.stderr.isatty()
numbers = [stream.fileno() for stream in (sys.stdin, sys.stdout, sys.stderr)]
with open(sys.argv[1], "w") as file:
    json.dump([*numbers, all(map(os.get_inheritable, numbers)), file.fileno() > 2, sys.stdin.read()], file)
"""


@pytest.mark.parametrize("closed", ["2>&-", "<&- >&- 2>&-", ">&-"])
def test_closed_streams_are_the_null_device_under_their_own_numbers(tmp_path: Path, closed: str) -> None:
    facts = tmp_path / "facts.json"
    command = f'exec "$0" -c "$1" "$2" </dev/null {closed}'
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    words = ["sh", "-c", command, sys.executable, CODE, str(facts)]
    subprocess.run(words, env=environment, timeout=60, check=True)
    assert json.loads(facts.read_text()) == [0, 1, 2, True, True, ""]


def test_command_with_a_closed_error_stream_sees_streams(tmp_path: Path) -> None:
    code = "import sys; from yolo_lightning.__main__ import main; main(); sys.exit(sys.stderr is None)"
    words = ["sh", "-c", 'exec "$0" -c "$1" --version 2>&-', sys.executable, code]
    done = subprocess.run(words, env=os.environ | {"PYTHONPATH": str(REPOSITORY)}, timeout=60, check=False)
    assert done.returncode == 0
