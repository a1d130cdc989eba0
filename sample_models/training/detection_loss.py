"""Loss of the detector: centre sampling, quality focal loss for classes, GIoU for boxes.

Source: FCOS (arXiv 1904.01355) for centre sampling, GFL (arXiv 2006.04388) for the quality focal
loss, GIoU (arXiv 1902.09630).
"""

import torch
from torch import Tensor, nn

from sample_models.training.networks import STRIDE_PX

_CENTRE_FRACTION = 0.3
_BOX_WEIGHT = 2.0


def assign(grid: Tensor, boxes: Tensor) -> Tensor:
    """Choose the true box that each cell answers for: the one in whose middle it lies.

    Args:
        grid: (2, A), cell centres in network pixels.
        boxes: (B, M, 4), xyxy, network pixels; unused rows are zero.

    Returns:
        int64 (B, A): index into M, or -1 for background.
    """
    size = boxes[..., 2:] - boxes[..., :2]
    centre = (boxes[..., :2] + boxes[..., 2:]) / 2
    # Half a cell at least, so that the cell nearest to a small object is never left out.
    reach = (size.min(dim=2).values * _CENTRE_FRACTION).clamp(min=STRIDE_PX / 2)
    away = (grid.T[None, :, None] - centre[:, None]).abs().max(dim=3).values
    inside = (away <= reach[:, None]) & (size.prod(dim=2) > 0)[:, None]
    nearest = away.masked_fill(~inside, torch.inf).min(dim=2)
    return torch.where(nearest.values.isfinite(), nearest.indices, -1)


def detection_loss(
    grid: Tensor, predicted: tuple[Tensor, Tensor], boxes: Tensor, labels: Tensor
) -> Tensor:
    """Compute the loss of one batch.

    Args:
        grid: (2, A), cell centres in network pixels.
        predicted: (B, 4, A) distances in network pixels and (B, C, A) class logits.
        boxes: (B, M, 4), xyxy, network pixels; unused rows are zero.
        labels: int64 (B, M).

    Returns:
        Scalar.
    """
    distances, logits = predicted
    chosen = assign(grid, boxes)
    image, cell = torch.nonzero(chosen >= 0, as_tuple=True)
    true = boxes[image, chosen[image, cell]]
    cell_boxes = distances[image, :, cell]
    centre = grid.T[cell]
    corners = torch.cat([centre - cell_boxes[:, :2], centre + cell_boxes[:, 2:]], dim=1)
    iou, giou = overlap(corners, true)
    target = torch.zeros_like(logits)
    target[image, labels[image, chosen[image, cell]], cell] = iou.detach().clamp(0, 1)
    weight = (target - logits.sigmoid()).abs().detach() ** 2
    entropy = nn.functional.binary_cross_entropy_with_logits(logits, target, reduction="none")
    positives = max(len(cell), 1)
    return (weight * entropy).sum() / positives + _BOX_WEIGHT * (1 - giou).sum() / positives


def overlap(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Return IoU and generalised IoU, each (N,), of paired boxes (N, 4), xyxy."""
    area_left = (left[:, 2:] - left[:, :2]).prod(dim=1)
    area_right = (right[:, 2:] - right[:, :2]).prod(dim=1)
    corner_min = torch.maximum(left[:, :2], right[:, :2])
    corner_max = torch.minimum(left[:, 2:], right[:, 2:])
    shared = (corner_max - corner_min).clamp(min=0).prod(dim=1)
    union = area_left + area_right - shared
    iou = shared / union
    outer_min = torch.minimum(left[:, :2], right[:, :2])
    outer_max = torch.maximum(left[:, 2:], right[:, 2:])
    outer = (outer_max - outer_min).prod(dim=1)
    return iou, iou - (outer - union) / outer
