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
    from yolo_lightning.commands import TOOLS, WITHOUT_TORCH

    if sys.argv[1:] == ["--version"]:
        print(f"yolo_lightning {__version__}")
        return
    set_switches()
    from yolo_lightning.commands.answers import answer, has_pictures_of
    from yolo_lightning.commands.option_errors import user_errors

    with requeued(), user_errors():
        words = sys.argv[1:] = answer(sys.argv[1:])
        from yolo_lightning.supervision import remove_files_of_dead_processes

        remove_files_of_dead_processes()
        if words[0] in STOPPABLE:
            request.install()
        try:
            from yolo_lightning.commands.start_supervisor import start_supervisor
            from yolo_lightning.supervision.heartbeat import open_from_environment

            start_supervisor(words)
            if words[0] not in WITHOUT_TORCH:
                open_from_environment()  # a supervisor watches from here on: imports take seconds and may hang
            if words[0] in TOOLS or has_pictures_of(words):  # without the imports of a fit, such as Lightning
                from yolo_lightning.commands.command_line import run_tool

                run_tool(words[0], words[1:])
                return
            gc.disable()  # a fifth of the processor time of the import, whose 800,000 objects all stay
            from yolo_lightning.cli import main as run

            gc.enable()
            run()
        except Stopped as stopped:
            nothing = " before a step was trained: nothing to save" if words[0] == "fit" else ""
            say(f"stopped by {signal.Signals(stopped.number).name}{nothing}")
            raise


if __name__ == "__main__":
    main()
