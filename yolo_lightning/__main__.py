"""`python -m yolo_lightning`; also what the console script calls."""

import gc
import signal
import sys

from yolo_lightning.utils.offline import set_switches
from yolo_lightning.utils.slurm import requeued
from yolo_lightning.utils.standard_streams import open_closed_streams
from yolo_lightning.utils.stop_signals import Stopped, request, say


def main() -> None:
    """Run the command line of this process.

    Imported late: a spawned loader worker imports this file again and needs neither Lightning nor Ultralytics.
    """
    open_closed_streams()
    from yolo_lightning import __version__

    if __name__ != "__main__" and not sys.flags.safe_path and "" not in sys.path:
        sys.path.insert(0, "")  # the console script finds modules of the user in the working directory, as `python -m`
    if sys.argv[1:] == ["--version"]:
        print(f"yolo_lightning {__version__}")
        return
    set_switches()
    from yolo_lightning.commands.resolve import resolve
    from yolo_lightning.commands.user_errors import user_errors
    from yolo_lightning.options.command_names import SUBCOMMANDS, WITHOUT_TORCH
    from yolo_lightning.supervision.kill import remove_files_of_dead_processes
    from yolo_lightning.utils.paths import require_working_folder

    with requeued(), user_errors():
        require_working_folder()
        remove_files_of_dead_processes()
        spec = resolve(sys.argv[1:])
        if spec.command in SUBCOMMANDS:
            request.install()
        try:
            from yolo_lightning.commands.fit_start import start_supervisor
            from yolo_lightning.supervision.heartbeat import open_from_environment

            start_supervisor(spec)
            if spec.command not in WITHOUT_TORCH:
                open_from_environment()  # a supervisor watches from here on: imports take seconds and may hang
            if spec.is_tool:
                from yolo_lightning.commands.command_line import run_tool

                run_tool(spec)
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
