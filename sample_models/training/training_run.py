"""One training of a sample model, from the command line to the files of its package."""

import argparse
import json
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import cv2
import torch
from torch import Tensor, nn

from sample_models.training.export import Signature, export_onnx
from sample_models.training.measurement import Figures

_PEAK_RATE = 4e-3
_WEIGHT_DECAY = 1e-2
_WARM_UP = 0.1
_LARGEST_GRADIENT = 5.0


class TrainingRun:
    """A training that begins now: options are read, chance is seeded, seconds are counted.

    torch is kept on one thread, with deterministic kernels.

    Args:
        description: what the command line says of the script.
        folder: name of the model folder.
        seed: unless another is asked for.
        steps: number of batches, unless another is asked for.

    Attributes:
        seed: of all scenes and of torch.
        steps: number of batches.
        output: the folder to write.
    """

    def __init__(self, description: str | None, folder: str, *, seed: int, steps: int) -> None:
        parser = argparse.ArgumentParser(description=description)
        parser.add_argument("--seed", type=int, default=seed)
        parser.add_argument("--steps", type=int, default=steps)
        parser.add_argument("--output", type=Path, default=Path("sample_models") / folder)
        options = parser.parse_args()
        self.seed: int = options.seed
        self.steps: int = options.steps
        self.output: Path = options.output
        cv2.setNumThreads(1)
        torch.manual_seed(self.seed)
        torch.set_num_threads(1)
        torch.use_deterministic_algorithms(True)
        self._started = time.process_time()
        self._trained: Figures = {}

    def optimise(
        self, network: nn.Module, batch: int, scenes: int, batch_loss: Callable[[], Tensor]
    ) -> None:
        """Train a network with AdamW, then put it into evaluation mode.

        Args:
            network: changed in place.
            batch: number of scenes of a batch.
            scenes: number of scenes that batches are drawn from.
            batch_loss: draws a batch and computes its loss.
        """
        drawn = time.process_time()
        optimiser = torch.optim.AdamW(
            network.parameters(), lr=_PEAK_RATE, weight_decay=_WEIGHT_DECAY
        )
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimiser, lambda step: rate_at(step, self.steps)
        )
        network.train()
        for step in range(self.steps):
            loss = batch_loss()
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(network.parameters(), _LARGEST_GRADIENT)
            optimiser.step()
            schedule.step()
            if step % 50 == 0 or step == self.steps - 1:
                print(f"step {step:5d}  loss {loss.item():.4f}", flush=True)
        network.eval()
        self._trained = {
            "batch": batch,
            "training_scenes": scenes,
            "cpu_seconds": {
                "scenes": round(drawn - self._started, 1),
                "training": round(time.process_time() - drawn, 1),
            },
        }

    def write_package(
        self,
        network: nn.Module,
        signature: Signature,
        labels: tuple[str, ...],
        config: str,
        measure: Callable[[Path], Figures],
    ) -> None:
        """Write a model of one file with its labels, model.toml and figures.

        Args:
            network: trained by `optimise`.
            signature: names and size.
            labels: class names.
            config: text of model.toml.
            measure: measures the exported file.
        """
        path = self.output / "model.onnx"
        difference = export_onnx(network, signature, path)
        (self.output / "labels.txt").write_text("".join(f"{label}\n" for label in labels))
        (self.output / "model.toml").write_text(config)
        self.write_figures([network], path.stat().st_size, difference, measure(path))

    def write_figures(
        self,
        exported: Sequence[nn.Module],
        onnx_bytes: int | dict[str, int],
        difference: float,
        measured: Figures,
    ) -> None:
        """Write figures.json, and print it.

        Args:
            exported: networks, whose parameters are counted.
            onnx_bytes: size of the one file, or of each.
            difference: largest between torch and onnxruntime.
            measured: what the exported model can do.
        """
        figures = {
            "seed": self.seed,
            "steps": self.steps,
            "batch": self._trained["batch"],
            "training_scenes": self._trained["training_scenes"],
            "parameters": sum(
                parameter.numel() for network in exported for parameter in network.parameters()
            ),
            "cpu_seconds": self._trained["cpu_seconds"],
            "onnx_bytes": onnx_bytes,
            "torch_to_onnxruntime_max_difference": difference,
            **measured,
        }
        text = json.dumps(figures, indent=2)
        (self.output / "figures.json").write_text(text + "\n")
        print(text)


def rate_at(step: int, steps: int) -> float:
    """Return the share of the peak rate: linear warm-up, then a cosine down to 0."""
    warm = max(1, round(steps * _WARM_UP))
    if step < warm:
        return (step + 1) / warm
    return 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm)))
