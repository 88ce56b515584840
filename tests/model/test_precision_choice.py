"""Choice of `trainer.precision: auto` for the results of a trial, and the trial itself."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from yolo_lightning.model import precision_choice
from yolo_lightning.model.convolution_settings import ConvolutionSettings
from yolo_lightning.model.precision_choice import PrecisionChoice, choose_precision
from yolo_lightning.model.precision_trial import PrecisionTrial, product_error, run_trial, weight_error

CPU = torch.device("cpu")
GOOD = {"product_error": 0.002, "layer_error": 0.01, "weight_error": 0.0017, "share": 0.5}


def chosen(cache_file: Path | None = None, device: torch.device = CPU, **changes: float) -> PrecisionChoice:
    """Return the choice after a child process that prints a trial."""
    command = [sys.executable, "-S", "-c", f"print({json.dumps(GOOD | changes)!r})"]
    return choose_precision(device, ConvolutionSettings(), cache_file, command=command)


@pytest.mark.parametrize(
    ("changes", "precision", "words"),
    [
        ({}, "bf16-mixed", "convolutions in bfloat16 take 0.50 times as long as in float32"),
        ({"share": 0.7}, "bf16-mixed", "0.70 times"),
        ({"share": 0.71}, "32-true", "0.71 times as long as in float32, more than 0.7"),
        ({"product_error": 1.0}, "32-true", "products in bfloat16 have an error of 1, more than 0.05"),
        ({"layer_error": 0.2}, "32-true", "layers in bfloat16 have an error of 0.2, more than 0.1"),
        # The sum of 16 images is rounded after every image.
        (
            {"weight_error": 0.0048},
            "32-true",
            "sums of weight gradients over images in bfloat16 have an error",
        ),
        ({"weight_error": float("nan")}, "32-true", "error of nan"),
    ],
)
def test_trial_decides(changes: dict[str, float], precision: str, words: str) -> None:
    choice = chosen(**changes)
    assert choice.precision == precision
    assert words in choice.reason


def test_failed_trial_means_float32() -> None:
    command = [sys.executable, "-S", "-c", "raise SystemExit(3)"]
    choice = choose_precision(CPU, ConvolutionSettings(), command=command)
    assert choice.precision == "32-true"
    assert choice.reason.startswith("the test of bfloat16 crashed: exit code 3")


def test_result_is_stored_for_the_implementation(tmp_path: Path) -> None:
    cache = tmp_path / "cache.json"
    assert chosen(cache).precision == "bf16-mixed"
    again = chosen(cache, share=2.0)
    assert again.precision == "bf16-mixed"
    assert "stored result" in again.reason
    command = [sys.executable, "-S", "-c", f"print({json.dumps(GOOD | {'share': 2.0})!r})"]
    gemm = choose_precision(CPU, ConvolutionSettings(backend="gemm"), cache, command=command)
    assert gemm.precision == "32-true"


@pytest.mark.parametrize(
    ("hip", "capability", "precision"), [(None, 7, "16-mixed"), (None, 8, "bf16-mixed"), ("6.2", 10, "bf16-mixed")]
)
def test_older_nvidia_cards_have_float16(
    hip: str | None, capability: int, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (capability, 5))
    assert precision_choice.half_precision(torch.device("cuda")) == precision


def test_other_devices_keep_float32() -> None:
    assert chosen(device=torch.device("mps")) == PrecisionChoice("32-true", "mixed precision is not tested on mps")


class SumsPerImage(torch.nn.Conv2d):
    """A convolution whose weight gradient is rounded after every image."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        def rounded(gradient: torch.Tensor) -> torch.Tensor:
            return gradient.bfloat16().float()

        total: Any = self.weight
        outputs = []
        for image in input.split(1):
            total.register_hook(rounded)
            outputs.append(super()._conv_forward(image, total, None))
            total = total * 1.0
        return torch.cat(outputs)


def test_error_of_a_sum_that_is_rounded_after_every_image_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("yolo_lightning.model.precision_trial.CHANNELS", 4)
    layer = SumsPerImage(4, 4, 3, padding=1, bias=False)
    errors = [weight_error(layer, torch.bfloat16, images) for images in (1, 16)]
    assert errors[1] > 1.5 * errors[0]


def test_product_in_16_bits_is_rounded_once() -> None:
    assert product_error(CPU, torch.bfloat16) < 0.01


@pytest.mark.slow
def test_real_trial() -> None:
    trial = run_trial(CPU, "native", ConvolutionSettings(), "bfloat16", 2)
    assert isinstance(trial, PrecisionTrial)
    assert trial.share > 0
    assert trial.layer_error < 0.1
