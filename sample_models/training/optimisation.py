"""The training loop that all sample models share."""

import math
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

_PEAK_RATE = 4e-3
_WEIGHT_DECAY = 1e-2
_WARM_UP = 0.1
_LARGEST_GRADIENT = 5.0


def make_reproducible(seed: int) -> None:
    """Seed torch and keep it on one thread, with deterministic kernels."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)


def rate_at(step: int, steps: int) -> float:
    """Give the share of the peak rate: linear warm-up, then a cosine down to 0."""
    warm = max(1, round(steps * _WARM_UP))
    if step < warm:
        return (step + 1) / warm
    return 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm)))


def optimise(network: nn.Module, steps: int, batch_loss: Callable[[], Tensor]) -> float:
    """Train a network with AdamW, then put it into evaluation mode.

    Args:
        network: changed in place.
        steps: number of batches.
        batch_loss: draws a batch and computes its loss.

    Returns:
        CPU seconds spent.
    """
    started = time.process_time()
    optimiser = torch.optim.AdamW(network.parameters(), lr=_PEAK_RATE, weight_decay=_WEIGHT_DECAY)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: rate_at(step, steps))
    network.train()
    for step in range(steps):
        loss = batch_loss()
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(network.parameters(), _LARGEST_GRADIENT)
        optimiser.step()
        schedule.step()
        if step % 50 == 0 or step == steps - 1:
            print(f"step {step:5d}  loss {loss.item():.4f}", flush=True)
    network.eval()
    return time.process_time() - started
