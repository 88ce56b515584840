"""A notebook from the dataset to a resumed training, without ordinary lines in red and warnings with source paths."""

import re
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch import Trainer
from lightning.pytorch.tuner import Tuner
from synthetic import draw_dataset
from torch.utils.data import DataLoader

from yolo_lightning import YOLOModule

CELLS = [
    """
from pathlib import Path
from lightning.pytorch import Trainer
from yolo_lightning import DetectionDataModule, Detector, YOLOModule
from yolo_lightning.data.loader import LoaderSettings
""",
    'data = DetectionDataModule("dataset", image_size=64, batch_size=4, loader=LoaderSettings(num_workers=0))',
    'data.setup("fit"); next(iter(data.train_dataloader())).images.shape',
    'model = YOLOModule("yolov8n")',
    """
options = dict(logger=False, accelerator="cpu", log_every_n_steps=1)
trainer = Trainer(default_root_dir="run", max_epochs=1, **options)
trainer.fit(model, data)
""",
    "trainer.validate(model, data)",
    """
trainer.save_checkpoint("last.ckpt")
detector = Detector("last.ckpt", score_threshold=0.0001)
result = detector(next(Path("dataset").rglob("*.jpg")))
""",
    "result",
    """
resumed = Trainer(default_root_dir="run", max_epochs=2, **options)
resumed.fit(YOLOModule("yolov8n"), data, ckpt_path="last.ckpt")
resumed.current_epoch
""",
]


nbclient: Any = pytest.importorskip("nbclient")
nbformat: Any = pytest.importorskip("nbformat")


def test_learning_rate_finder_is_refused() -> None:
    trainer = Trainer(logger=False, enable_checkpointing=False, accelerator="cpu", enable_progress_bar=False)
    loader: DataLoader[int] = DataLoader(range(2))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"lr_find .* not supported: model\.recipe sets the learning rate"):
        Tuner(trainer).lr_find(YOLOModule(), loader)


@pytest.mark.whole_run
def test_cells_run_and_print_no_ordinary_line_in_red(tmp_path: Path) -> None:
    draw_dataset(tmp_path / "dataset", train_frames=16, valid_frames=8, test_frames=4, width=96, height=64)
    notebook: Any = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in CELLS])
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.outputs]
    assert [output.text for output in outputs if output.get("name") == "stderr"] == [], "a notebook shows stderr in red"
    assert re.findall(r"\S+\.py:\d+", str(outputs)) == [], "warnings with their place in the source code"
    printed = "".join(output.text for output in outputs if output.get("name") == "stdout")
    assert "Tip:" not in printed, "advertisements"
    assert "Restored all states from the checkpoint" in printed
    assert "image/png" in notebook.cells[7].outputs[0].data
    assert notebook.cells[8].outputs[-1].data["text/plain"] == "2"
