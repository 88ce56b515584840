"""Scripts in copies of one process that has imported what they need: importing Lightning takes most of a short run.

    python forks.py MODULE ...    obeys lines of JSON: `[WORDS, FOLDER, ENVIRONMENT, OUTPUT]` starts a script, whose
                                  process identifier is the answer; a process identifier waits, its exit code is it

Each copy leads a session of its own and ends as any Python does. No copy knows anything of another.
"""

import json
import os
import runpy
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
MODULES = ("callbacks", "yolo_lightning.cli")


@dataclass(frozen=True)
class Fork:
    """A script that was started."""

    forks: "Forks"
    pid: int

    def wait(self) -> int:
        """Its exit code, negative after a signal, once it has ended; ask once."""
        return self.forks.ask(self.pid)


class Forks:
    """The process that is copied."""

    def __init__(self) -> None:
        environment = os.environ | {"PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, __file__, *MODULES]
        self.process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def start(
        self, *words: str | Path, folder: Path, output: Path | None = None, environment: Mapping[str, str] | None = None
    ) -> Fork:
        """Run a script.

        Args:
            words: The script and its command line.
            folder: Where it runs.
            output: File for what it prints; this process prints it otherwise.
            environment: Variables to add.
        """
        where = None if output is None else str(output)
        return Fork(self, self.ask([[str(word) for word in words], str(folder), dict(environment or {}), where]))

    def ask(self, request: Any) -> int:
        """Send a line, read the answer."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def close(self) -> None:
        """End the process; copies that nobody waited for go on."""
        self.process.communicate(timeout=30)


def serve() -> list[str]:
    """Obey until there is no more to do, which ends this process, or this is the copy that runs the words returned."""
    for line in sys.stdin:
        request = json.loads(line)
        if isinstance(request, int):
            answer = os.waitstatus_to_exitcode(os.waitpid(request, 0)[1])
        elif not (answer := os.fork()):
            words, folder, environment, output = request
            os.setsid()
            os.chdir(folder)
            os.environ.update(environment)
            nothing = os.open(os.devnull, os.O_RDONLY)
            os.dup2(nothing, 0)
            os.dup2(2 if output is None else os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 1)
            os.dup2(1, 2)
            return list(words)
        print(answer, flush=True)
    os._exit(0)


if __name__ == "__main__":
    for module in sys.argv[1:]:
        import_module(module)
    sys.argv = serve()
    sys.path[0] = str(Path(sys.argv[0]).parent)
    runpy.run_path(sys.argv[0], run_name="__main__")
