"""The child process of a probe: `python -m yolo_lightning.commands.doctor.probe_work PROBE DEVICE TIMEOUT_S`.

It can hang or crash. Otherwise it prints an `Answer` as one line of JSON.
"""

import faulthandler
import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from yolo_lightning.commands.doctor.probes import Outcome, Probe
from yolo_lightning.utils.announced_operations import announce

SPARE_S = 10.0
"""Time in seconds for the report after a time limit inside the child process."""

LAYER_TOLERANCE = 0.01
"""Largest error of a layer, relative to the largest value of an output or gradient."""

LARGE_ROWS = (1 << 19) + 4096
LARGE_INNER = 32
"""Rows, and inner size and columns, of a product above `MAX_PRODUCT_ROWS` of the convolutions."""

LOADER_WORKERS = 2
LOADER_BATCHES = 4
LOADER_BATCH_SIZE = 8


@dataclass(frozen=True, slots=True)
class Answer:
    """Outcome of a probe with evidence, as the child process prints it."""

    outcome: Outcome
    detail: str
    device: str = ""  # found by the probe `DEVICE`


def main(probe: Probe, device: str, timeout_s: float) -> None:
    """Run a probe in this process and print its answer."""
    # Ends a hang if the parent process is gone. The watchdog thread does not need the GIL.
    faulthandler.dump_traceback_later(timeout_s + SPARE_S, exit=True)
    try:
        answer = WORK[probe](probe, device, timeout_s)
    except Exception as error:
        answer = Answer(Outcome.FAILS, f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"[:300])
    print(json.dumps(asdict(answer)), flush=True)
    faulthandler.cancel_dump_traceback_later()


def packages(probe: Probe, device: str, timeout_s: float) -> Answer:
    """Import packages and run compiled functions of them, which fail if builds do not match."""
    announce("import numpy")
    import numpy

    announce("import torch")
    import torch

    announce("torchvision's NMS")
    from torchvision.ops import nms

    kept = nms(torch.tensor([[0.0, 0.0, 2.0, 2.0], [0.0, 0.0, 2.0, 2.1]]), torch.tensor([0.5, 0.9]), 0.5)
    announce("OpenCV's JPEG codec")
    import cv2

    decoded = cv2.imdecode(cv2.imencode(".jpg", numpy.full((32, 32), 128, numpy.uint8))[1], cv2.IMREAD_GRAYSCALE)
    if kept.tolist() != [1] or decoded is None or abs(int(decoded.mean()) - 128) > 2:
        return Answer(Outcome.WRONG, f"NMS kept {kept.tolist()} instead of [1], or a JPEG round trip changed the image")
    return Answer(Outcome.WORKS, f"torch, torchvision, OpenCV {cv2.__version__}")


def _torch_device(probe: Probe, device: str, timeout_s: float) -> Answer:
    """Find the device that torch uses, and compute a sum on it."""
    announce("import torch")
    import torch

    from yolo_lightning.utils.accelerator import accelerator_type, device_name

    announce("find the device")
    if device == "auto":
        device = accelerator_type()
    name = ""
    missing = ""
    if device.startswith("cuda"):
        properties = torch.cuda.get_device_properties(device)
        name = properties.name
        architecture = f"sm_{properties.major}{properties.minor}"
        if torch.version.hip:
            architecture = properties.gcnArchName
            name = f"{properties.name} {architecture}".strip()  # a GPU can have no name
        missing = missing_code(architecture, torch.cuda.get_arch_list())
    elif not device.startswith("cpu"):
        name = device_name(torch.device(device))
    announce(f"compute on {device}{missing}")
    try:
        total = torch.arange(1000.0, device=device).sum().item()
    except RuntimeError as error:
        return Answer(Outcome.FAILS, f"{str(error).partition(chr(10))[0]}{missing}", device)
    if total != 499_500.0:
        return Answer(Outcome.WRONG, f"the sum of 0 to 999 is {total} on {device}", device)
    return Answer(Outcome.WORKS, f"{device} {name}".strip() + missing, device)


def missing_code(architecture: str, built: Sequence[str]) -> str:
    """Return an addition to a finding if torch was built without code for a GPU, else an empty string.

    Args:
        architecture: Of the GPU, for example gfx90a:sramecc+ or sm_89.
        built: Result of `torch.cuda.get_arch_list()`.
    """
    name = architecture.partition(":")[0]
    runs = _runs_cuda if name.startswith("sm_") else _runs_rocm
    if not built or any(runs(name, target) for target in built):
        return ""
    return f"; torch contains code for {', '.join(built)}, but not for {name}"


def _runs_cuda(name: str, target: str) -> bool:
    """Return whether a GPU such as sm_89 runs code for a target such as sm_80 or compute_80."""
    # Code for an older GPU of the same major version also runs, and PTX (compute_80) is compiled for newer GPUs.
    number = int(name[3:])
    form, _, digits = target.partition("_")
    target_number = int("".join(filter(str.isdigit, digits)))
    return target_number <= number and (form == "compute" or target_number // 10 == number // 10)


def _runs_rocm(name: str, target: str) -> bool:
    """Return whether a GPU such as gfx1010 runs code for a target such as gfx1010:xnack- or gfx10-1-generic."""
    if target.endswith("-generic"):  # gfx10-1-generic is code for gfx1010 to gfx1013
        return name.startswith(target.removesuffix("-generic").replace("-", ""))
    return name == target.partition(":")[0]


def matmul(probe: Probe, device: str, timeout_s: float) -> Answer:
    """Compare a batch of matrix products, as large as a convolution, with float64 on the CPU."""
    import torch

    from yolo_lightning.model import precision_trial as trial

    name = probe.removeprefix("matmul_")
    dtype = getattr(torch, name)
    announce(f"{dtype} product on {device}")
    answer = judge_error(trial.product_error(torch.device(device), dtype), trial.PRODUCT_TOLERANCE[name])
    if probe is not Probe.MATMUL_BFLOAT16 or not device.startswith("cpu"):
        return answer
    announce("convolutions in bfloat16 and float32")
    share = trial.convolution_share(trial.trial_convolution(torch.device("cpu")), dtype)
    detail = f"{answer.detail}; convolutions take {share:.2f} times as long as in float32"
    return Answer(answer.outcome, detail)


def exact_products(probe: Probe, device: str, timeout_s: float) -> Answer:
    """Multiply float32 matrices of small integers, whose products are exact in any order of summation.

    One product has more rows than the convolutions of this package multiply at once, another is computed twice.
    """
    import torch

    from yolo_lightning.model.precision_trial import MATRICES

    _, rows, inner, columns = MATRICES
    generator = torch.Generator().manual_seed(0)

    def integers(*size: int) -> torch.Tensor:
        return torch.randint(-3, 4, size, generator=generator).float()

    announce(f"product of {LARGE_ROWS} rows on {device}")
    rows_of_integers = integers(LARGE_ROWS, LARGE_INNER)
    matrix = integers(LARGE_INNER, LARGE_INNER)
    product = torch.matmul(rows_of_integers.to(device), matrix.to(device)).cpu()
    wrong_rows = (product != torch.matmul(rows_of_integers.double(), matrix.double())).any(1).nonzero()
    if len(wrong_rows):
        detail = f"{len(wrong_rows)} of {LARGE_ROWS} rows of a product differ, first row {int(wrong_rows[0])}"
        return Answer(Outcome.WRONG, detail)
    announce(f"one product twice on {device}")
    operands = integers(rows, inner).to(device), integers(inner, columns).to(device)
    first_run, second_run = (torch.matmul(*operands) for _ in range(2))
    if not torch.equal(first_run, second_run):
        return Answer(Outcome.WRONG, "two runs of one product differ")
    return Answer(Outcome.WORKS, f"{LARGE_ROWS} rows exact, two runs equal bit for bit")


def layer(probe: Probe, device: str, timeout_s: float) -> Answer:
    """Compare forward and backward of our layers as training uses them with float64 on the CPU."""
    import torch

    from yolo_lightning.model.native_trial import arranged, largest_error, make_inputs, probed_layers

    tested = arranged("gemm", torch.device(device), _default_settings(timeout_s))
    error = largest_error(f"{probe} on {device}", tested, probed_layers(), make_inputs())
    return judge_error(error, LAYER_TOLERANCE)


def _default_settings(timeout_s: float) -> Any:
    """Return the default settings of the model with a time limit."""
    from yolo_lightning.model.convolution_settings import ConvolutionSettings

    return ConvolutionSettings(probe_timeout_s=timeout_s, autotune_budget_s=timeout_s / 4)


def judge_error(error: float, tolerance: float) -> Answer:
    """Return the answer for an error relative to the largest value; the comparison is false for NaN."""
    outcome = Outcome.WORKS if error <= tolerance else Outcome.WRONG
    return Answer(outcome, f"error {error:.2g} of the largest value")


def convolution(probe: Probe, device: str, timeout_s: float) -> Answer:
    """Test the vendor's convolutions as `model.convolution.backend: auto` does: correct, and not slower than ours."""
    import torch

    from yolo_lightning.model.native_failures import known_failure, verdicts_file
    from yolo_lightning.model.native_probe import probe_native

    announce(f"PyTorch's own convolutions on {device}")
    failure = known_failure(torch.device(device), verdicts_file())
    if failure is not None:
        return Answer(Outcome.CRASHES, f"{failure}; `doctor --retry` tests them again")
    limit_s = max(timeout_s - SPARE_S, timeout_s / 2)
    result = probe_native(torch.device(device), _default_settings(limit_s), longest_s=limit_s)
    outcomes = {"crashed": Outcome.CRASHES, "hung": Outcome.HANGS, "wrong": Outcome.WRONG, "slower": Outcome.SLOWER}
    return Answer(outcomes.get(result.outcome, Outcome.WORKS), result.detail)


class Frames:
    """Frames `(1, 640, 640)` uint8 whose pixels are equal to their index, so that batches can be verified."""

    def __len__(self) -> int:
        return LOADER_BATCHES * LOADER_BATCH_SIZE

    def __getitem__(self, index: int) -> Any:
        import torch

        return torch.full((1, 640, 640), index, dtype=torch.uint8)


def loader(probe: Probe, device: str, timeout_s: float) -> Answer:
    """Load two epochs with the loader settings of training; the workers are restarted in between."""
    import torch
    from torch.utils.data import DataLoader

    from yolo_lightning.data.loader import loader_arguments
    from yolo_lightning.data.loader_settings import LoaderSettings
    from yolo_lightning.utils.accelerator import uses_pinned_memory

    settings = LoaderSettings(num_workers=LOADER_WORKERS, persistent_workers=False)
    arguments = loader_arguments(settings, on_gpu=uses_pinned_memory(torch.device(device)), persistent=False)
    frames: Any = Frames()
    expected = LOADER_BATCHES * (len(frames) - 1) / 2
    batches: Any = DataLoader(frames, batch_size=LOADER_BATCH_SIZE, **arguments)
    for epoch in range(2):
        announce(f"epoch {epoch}, workers by spawn")
        total = sum(float(batch.to(device).float().mean()) for batch in batches)
        if not math.isclose(total, expected, rel_tol=1e-5):
            return Answer(Outcome.WRONG, f"the frames of epoch {epoch} changed: sum of means {total}, not {expected}")
    pinned = ", pinned" if arguments["pin_memory"] else ""
    return Answer(Outcome.WORKS, f"{2 * LOADER_BATCHES} batches{pinned}")


WORK: dict[Probe, Callable[[Probe, str, float], Answer]] = {
    Probe.PACKAGES: packages,
    Probe.DEVICE: _torch_device,
    Probe.LOADER: loader,
    Probe.MATMUL_FLOAT32: matmul,
    Probe.MATMUL_FLOAT16: matmul,
    Probe.MATMUL_BFLOAT16: matmul,
    Probe.MATMUL_EXACT: exact_products,
    Probe.OWN_CONVOLUTION: layer,
    Probe.CONVOLUTION: convolution,
}

if __name__ == "__main__":
    main(Probe(sys.argv[1]), sys.argv[2], float(sys.argv[3]))
