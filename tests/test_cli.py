"""The command line in-process: precedence of options, and messages for invalid input."""

import json
import logging
import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
import yaml
from lightning.pytorch import Trainer

from tests.conftest import TINY, data_options
from yolo_lightning import cli
from yolo_lightning.callbacks import HeartbeatFile
from yolo_lightning.cli import main
from yolo_lightning.commands import fit_summary
from yolo_lightning.supervision.fallback_levels import FallbackState
from yolo_lightning.utils.run_files import STATE_FILE

Run = Callable[..., None]
RUN = Path("runs/yolo")
ONE_BATCH = ["--trainer.limit_train_batches", "1", "--trainer.limit_val_batches", "1"]
ONE_STEP = ["--model.recipe.nominal_batch", "16", "--trainer.max_epochs", "1", *ONE_BATCH]


class NamedHeartbeatFile(HeartbeatFile):
    """Stands for a user's subclass."""


def fails(run: Run, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run, expect a clean end, and return what was printed."""
    with pytest.raises(SystemExit) as stopped:
        run(*arguments)
    assert stopped.value.code == 2
    return capsys.readouterr().err


def last_checkpoint(folder: Path = RUN) -> Path:
    return folder / "checkpoints" / "last.ckpt"


def saved(path: Path) -> dict:
    return torch.load(path, weights_only=True)


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory: pytest.TempPathFactory, look_alike: Path, index_root: Path) -> Path:
    """A run folder with a checkpoint, made in one step."""
    folder = tmp_path_factory.mktemp("finished") / RUN
    data = data_options(look_alike, index_root)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["yolo_lightning"])
        options = [*ONE_STEP, "--model.recipe.lr0", "0.02", "--trainer.default_root_dir", str(folder)]
        main(["fit", "--trainer.accelerator", "cpu", *data, *TINY, *options])
    return folder


@pytest.fixture
def trained(run: Run, finished_run: Path, tmp_path: Path) -> Run:
    """The command line in a folder that holds a copy of the finished run."""
    shutil.copytree(finished_run, tmp_path / RUN)
    return run


@pytest.mark.whole_run
class TestCheckpointAndFlags:
    def test_flags_beat_the_checkpoint_and_the_difference_is_printed(
        self, trained: Run, caplog: pytest.LogCaptureFixture
    ) -> None:
        changed = ["--trainer.max_epochs", "2", "--model.recipe.lr0", "0.5", "--model.recipe.weight_decay", "0.25"]
        trained("fit", *ONE_BATCH, *changed, "--ckpt_path", str(last_checkpoint()))
        checkpoint = saved(last_checkpoint())
        assert checkpoint["hyper_parameters"]["recipe"]["lr0"] == 0.5
        assert "model.recipe.lr0 was 0.02, now 0.5" in caplog.text
        assert "trainer.max_epochs was 1, now 2" in caplog.text
        decays = {group["name"]: group["weight_decay"] for group in checkpoint["optimizer_states"][0]["param_groups"]}
        assert decays["weight"] == pytest.approx(0.25)
        assert checkpoint["steps"] == 2

    def test_going_back_to_an_older_checkpoint_is_a_run_of_its_own(self, trained: Run) -> None:
        trained("fit", "--resume", "--trainer.max_epochs", "2", *ONE_BATCH)
        older = RUN / "checkpoints" / "step-000000001.ckpt"
        trained("fit", "--ckpt_path", str(older), "--trainer.max_epochs", "2", *ONE_BATCH)
        assert saved(last_checkpoint())["steps"] == 2
        assert saved(last_checkpoint(Path("runs/yolo-2")))["steps"] == 2
        assert not (RUN.with_name("yolo-2") / "checkpoints" / older.name).exists()

    def test_samples_that_a_supervisor_set_aside_are_left_out(
        self, trained: Run, caplog: pytest.LogCaptureFixture
    ) -> None:
        saved_config = yaml.safe_load((RUN / "config.yaml").read_text())
        (RUN / STATE_FILE).write_text(json.dumps(asdict(FallbackState(quarantined=("index=0", "key=7")))))
        with pytest.warns(UserWarning, match="left out") as warned:
            trained("fit", "--resume", "--trainer.max_epochs", "2", *ONE_BATCH)
        texts = [str(warning.message) for warning in warned]
        assert "quarantined after repeated failures: index=0" in texts
        assert any(text.startswith("train: left out because of data.limits.quarantine: 2") for text in texts)
        assert "data.limits.quarantine was [], now ['index=0']" in caplog.text
        assert yaml.safe_load((RUN / "config.yaml").read_text())["data"]["limits"]["quarantine"] == ["index=0"]
        assert saved_config["data"]["limits"]["quarantine"] == []

    def test_automatic_values_are_printed_and_kept_by_a_resume(
        self, run: Run, caplog: pytest.LogCaptureFixture
    ) -> None:
        words = ["--data.batch_size", "auto", "--model.recipe.nominal_batch", "auto", "--model.recipe.warmup_epochs"]
        words += ["auto", *ONE_BATCH]
        with caplog.at_level(logging.INFO):
            run("fit", *words, "--trainer.max_epochs", "1")
            run("fit", *words, "--trainer.max_epochs", "2", "--resume")
        values = "data.batch_size 8, model.recipe.nominal_batch 8, model.recipe.warmup_epochs 0.1"
        assert f"auto, for 1 x 2 batches: {values}" in caplog.text
        assert f"auto, as in the checkpoint: {values}" in caplog.text

    def test_the_configuration_of_a_resumed_run_serves_any_subcommand(self, trained: Run) -> None:
        trained("fit", "--resume", "--trainer.max_epochs", "2", *ONE_BATCH)
        trained("validate", "--config", str(RUN / "config.yaml"))
        assert (RUN / "config.validate.yaml").is_file()
        assert not {"resume", "ckpt_path"} & yaml.safe_load((RUN / "config.yaml").read_text()).keys()

    def test_resumed_run_that_is_finished_ends_with_one_line(
        self, trained: Run, caplog: pytest.LogCaptureFixture
    ) -> None:
        with pytest.raises(SystemExit) as stopped:
            trained("fit", "--resume", *ONE_STEP)
        assert stopped.value.code == 0
        assert caplog.messages == [
            "runs/yolo: the training is finished, 1 of 1 epochs are done. "
            "To train longer, set --trainer.max_epochs to 2 or more."
        ]

    def test_what_follows_the_last_step_is_repeated_if_it_was_killed(
        self, run: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Killed(BaseException):
            pass

        def killed(*_: object, **__: object) -> None:
            raise Killed

        early = ["EarlyStopping", "--trainer.callbacks.monitor=val/map_50", "--trainer.callbacks.mode=max"]
        stops = ["--trainer.callbacks", *early, "--trainer.callbacks.stopping_threshold=-1"]
        words = [*ONE_STEP, "--trainer.max_epochs", "3", *stops]
        monkeypatch.setattr(cli, "end_fit", killed)
        for resume in ([], ["--resume"]):
            with pytest.raises(Killed):
                run("fit", *words, *resume)
            assert not (RUN / "finished.json").exists()
        monkeypatch.setattr(cli, "end_fit", fit_summary.end_fit)
        run("fit", *words, "--resume")
        assert not (RUN / "trained.json").exists()
        assert json.loads((RUN / "finished.json").read_text())["epochs"] == 1
        assert saved(last_checkpoint())["steps"] == 1

    def test_subclass_of_the_heartbeat_file_replaces_it(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        writers: list[str] = []

        def check(trainer: Trainer, *_: object, **__: object) -> None:
            writers.extend(
                type(callback).__name__ for callback in trainer.callbacks if isinstance(callback, HeartbeatFile)
            )
            assert (RUN / "trained.json").exists()
            assert not (RUN / "finished.json").exists()

        monkeypatch.setattr(cli, "end_fit", check)
        run("fit", *ONE_STEP, "--trainer.callbacks", f"{__name__}.NamedHeartbeatFile")
        assert writers == ["NamedHeartbeatFile"]
        assert (RUN / "finished.json").exists()

    def test_evaluation_takes_the_network_from_the_checkpoint(self, run: Run, caplog: pytest.LogCaptureFixture) -> None:
        run("fit", *ONE_STEP, "--model.convolution.backend", "gemm", "--model.detections.score_threshold", "0.3")
        with pytest.warns(UserWarning, match="frames have more objects than model.detections.max_detections 1, such"):
            run("validate", "--trainer.limit_val_batches", "1", "--model.detections.max_detections", "1")
        config = yaml.safe_load((RUN / "config.validate.yaml").read_text())["model"]
        assert config["convolution"]["backend"] == "gemm"
        assert (config["detections"]["score_threshold"], config["detections"]["max_detections"]) == (0.3, 1)
        assert "best.ckpt" in caplog.text

    def test_evaluation_prefers_the_run_to_the_weights_it_started_from(
        self, trained: Run, caplog: pytest.LogCaptureFixture
    ) -> None:
        trained("validate", "--trainer.limit_val_batches", "1", "--model.weights", "gone.pt")
        assert "best.ckpt" in caplog.text
        assert "model.weights gone.pt is not used: there is a run" in caplog.text
        assert yaml.safe_load((RUN / "config.validate.yaml").read_text())["model"]["weights"] is None

    def test_changed_training_data_is_refused(
        self, trained: Run, look_alike: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        other = Path("other-data")
        shutil.copytree(look_alike, other)
        content = json.loads((other / "Train.json").read_text())
        content["annotations"].pop()
        (other / "Train.json").write_text(json.dumps(content))
        text = fails(trained, capsys, "fit", "--resume", "--trainer.max_epochs", "2", "--data.root", str(other))
        assert "other training data" in text


class TestLayers:
    """Command line over environment over configuration file over defaults."""

    FILE = """
seed_everything: 1
data:
  batch_size: 4
  loader: {num_workers: 7, prefetch_factor: 3}
allow_pickle: true
"""

    @pytest.fixture
    def resolved(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> Callable[..., dict]:
        monkeypatch.setattr(sys, "argv", ["yolo_lightning"])
        file = tmp_path / "file.yaml"
        file.write_text(self.FILE)

        def call(subcommand: str, *words: str, **variables: str) -> dict:
            for name, value in variables.items():
                monkeypatch.setenv(f"YOLO_LIGHTNING_{subcommand.upper()}__{name}", value)
            with pytest.raises(SystemExit) as stopped:
                main([subcommand, *words, "--config", str(file), "--print_config"])
            assert stopped.value.code == 0
            return yaml.safe_load(capsys.readouterr().out)

        return call

    @pytest.mark.parametrize("subcommand", ["fit", "validate", "test", "predict"])
    def test_environment_beats_the_file_and_the_command_line_beats_both(
        self, resolved: Callable[..., dict], subcommand: str
    ) -> None:
        variables = {
            "SEED_EVERYTHING": "2",
            "DATA__BATCH_SIZE": "8",
            "DATA__LOADER__NUM_WORKERS": "5",
            "ALLOW_PICKLE": "false",
        }
        config = resolved(subcommand, "--data.batch_size", "16", **variables)
        assert (config["seed_everything"], config["allow_pickle"]) == (2, False)
        assert config["data"]["batch_size"] == 16
        assert (config["data"]["loader"]["num_workers"], config["data"]["loader"]["prefetch_factor"]) == (5, 3)

    def test_file_named_by_the_environment_lies_below_that_of_the_command_line(
        self, resolved: Callable[..., dict], tmp_path: Path
    ) -> None:
        (tmp_path / "base.yaml").write_text("data: {batch_size: 2, image_size: 96}\n")
        data = resolved("fit", CONFIG=str(tmp_path / "base.yaml"), DATA__LIMITS__MAX_BAD_FRAMES="9")["data"]
        assert (data["batch_size"], data["image_size"], data["limits"]["max_bad_frames"]) == (4, 96, 9)

    @pytest.mark.parametrize(
        ("variable", "value", "message"),
        [
            (
                "DATA__BATCH_SIZE",
                "many",
                "data.batch_size in the environment variable YOLO_LIGHTNING_FIT__DATA__BATCH_SIZE must be an integer",
            ),
            ("DATA__BATCHSIZE", "4", "YOLO_LIGHTNING_FIT__DATA__BATCHSIZE. Did you mean --data.batch_size 4?"),
        ],
    )
    def test_bad_variable_is_named(
        self,
        variable: str,
        value: str,
        message: str,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        monkeypatch.setenv(f"YOLO_LIGHTNING_FIT__{variable}", value)
        assert message in fails(lambda *words: main([*words]), capsys, "fit", "--print_config")


class TestBadInput:
    def test_weights_that_are_no_checkpoint(self, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
        Path("weights.pt").write_bytes(b"no pickle")
        error = fails(run, capsys, "fit", *ONE_STEP, "--model.weights", "weights.pt")
        assert "model.weights must be a .pt or .ckpt file of weights" in error

    @pytest.mark.whole_run
    def test_torn_frames_are_named_and_end_the_run_past_the_limit(
        self, run: Run, look_alike: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        root = Path("torn-data")
        shutil.copytree(look_alike, root)
        frames = [root / image["file_name"] for image in json.loads((root / "Train.json").read_text())["images"]]
        for frame in frames[:2]:
            frame.write_bytes(frame.read_bytes()[:-200])
        torn = ["--data.root", str(root), "--trainer.max_epochs", "1", "--data.augmentation.mosaic", "0"]
        text = fails(run, capsys, "fit", *torn, "--data.limits.max_bad_frames", "1")
        assert "frames cannot be used, more than data.limits.max_bad_frames 1" in text
        assert frames[0].name in text
        with pytest.warns(UserWarning, match="left out . of at most 2 bad frames"):
            run("fit", *torn, "--data.limits.max_bad_frames", "2")
        assert saved(last_checkpoint())["steps"] == 1


@pytest.mark.whole_run
def test_fit_ends_with_a_file_for_ultralytics_a_report_and_commands_that_work(
    run: Run, pictures: None, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ultralytics import YOLO

    run("fit", *ONE_STEP, "--trainer.default_root_dir", "first")
    network = YOLO(tmp_path / "first" / "checkpoints" / "best.pt")
    assert list(network.names.values()) == ["person", "bicycle", "motorcycle", "vehicle"]
    assert (tmp_path / "first" / "report.html").stat().st_size > 10_000
    run("test", "--config", "first/config.yaml", "--trainer.limit_test_batches", "1")
    assert (tmp_path / "first" / "test_scores.json").is_file()
