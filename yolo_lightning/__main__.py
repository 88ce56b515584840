"""`python -m yolo_lightning`; also what the console script calls."""

import gc
import signal
import sys

from yolo_lightning.utils.offline import set_switches
from yolo_lightning.utils.slurm import requeued
from yolo_lightning.utils.stop_signals import STOPPABLE, Stopped, request, say


def main() -> None:
    """Run the command line.

    Imported late: a spawned loader worker imports this file again and needs neither Lightning nor Ultralytics.
    """
    from yolo_lightning import __version__
    from yolo_lightning.commands import WITHOUT_TORCH

    if sys.argv[1:] == ["--version"]:
        print(f"yolo_lightning {__version__}")
        return
    set_switches()
    from yolo_lightning.commands.answers import is_tool, resolve
    from yolo_lightning.commands.option_errors import user_errors

    with requeued(), user_errors():
        spec = resolve(sys.argv[1:])
        from yolo_lightning.supervision import remove_files_of_dead_processes

        remove_files_of_dead_processes()
        if spec.command in STOPPABLE:
            request.install()
        try:
            from yolo_lightning.commands.fit_start import start_supervisor
            from yolo_lightning.supervision.heartbeat import open_from_environment

            start_supervisor(spec)
            if spec.command not in WITHOUT_TORCH:
                open_from_environment()  # a supervisor watches from here on: imports take seconds and may hang
            if is_tool(spec.words):
                from yolo_lightning.commands.command_line import run_tool

                run_tool(spec.command, spec.words[1:])
                return
            gc.disable()  # a fifth of the processor time of the import, whose 800,000 objects all stay
            from yolo_lightning.cli import run

            gc.enable()
            run(spec)
        except Stopped as stopped:
            nothing = " before a step was trained: nothing to save" if spec.command == "fit" else ""
            say(f"stopped by {signal.Signals(stopped.number).name}{nothing}")
            raise


if __name__ == "__main__":
    main()
