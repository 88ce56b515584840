"""The resolved configuration of a run, in the run folder and in every checkpoint."""

from functools import cached_property
from pathlib import Path
from typing import Any

import yaml
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.cli import SaveConfigCallback

from yolo_lightning.checkpoints.checkpoint_file import CONFIGURATION
from yolo_lightning.checkpoints.resume import storable
from yolo_lightning.utils import run_files
from yolo_lightning.utils.addresses import redacted
from yolo_lightning.utils.files import replacing
from yolo_lightning.utils.optional_file import OptionalFile

START = frozenset({"resume", "ckpt_path", "detach"})
"""Options that select the start of a command and are not part of the configuration of the run."""


class SaveRunConfig(SaveConfigCallback):
    """Writes the resolved configuration of any subcommand into the run folder.

    A resumed run overwrites the file with the configuration it was resumed with. If an address in the file contains
    credentials, only the owner can read the file.
    """

    def save_config(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        assert trainer.state.fn is not None
        path = Path(trainer.default_root_dir) / run_files.config_name(trainer.state.fn.value)
        with OptionalFile().attempt(path), replacing(path) as temporary:
            text = yaml.safe_dump(self._content, sort_keys=False)
            temporary.touch(0o600 if redacted(text) != text else 0o666)  # with credentials, for the owner only
            temporary.write_text(text)

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Store the configuration, so that a run can be resumed without the file."""
        content = storable(self._content)
        content["trainer"] |= {"precision": str(trainer.precision)}  # instead of `auto`
        checkpoint[CONFIGURATION] = content

    @cached_property
    def _content(self) -> dict[str, Any]:
        config = yaml.safe_load(self.parser.dump(self.config, skip_none=False))
        return {key: config[key] for key in config if key not in START}
