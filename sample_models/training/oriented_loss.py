"""Loss of the oriented detector: centre sampling along the box, boxes compared as Gaussians.

Source: ProbIoU (arXiv 2106.06072) for boxes, GFL (arXiv 2006.04388) for the quality focal loss.
"""

import torch
from torch import Tensor, nn

from sample_models.training.networks import STRIDE_PX

_CENTRE_FRACTION = 0.2
_BOX_WEIGHT = 2.0
_AXIS_WEIGHT = 0.5


def assign(grid: Tensor, boxes: Tensor) -> Tensor:
    """Choose the true box that each cell answers for: the one in whose middle it lies.

    Args:
        grid: (2, A), cell centres in network pixels.
        boxes: (B, M, 5), cx, cy, w, h in network pixels and angle; unused rows are zero.

    Returns:
        int64 (B, A): index into M, or -1 for background.
    """
    offset = grid.T[None, :, None] - boxes[:, None, :, :2]
    cos, sin = boxes[:, None, :, 4].cos(), boxes[:, None, :, 4].sin()
    along = offset[..., 0] * cos + offset[..., 1] * sin
    across = offset[..., 1] * cos - offset[..., 0] * sin
    # Half a cell at least, so that the cell nearest to a narrow object is never left out.
    reach = (boxes[..., 2:4] * _CENTRE_FRACTION).clamp(min=STRIDE_PX / 2)[:, None]
    away = torch.maximum(along.abs() / reach[..., 0], across.abs() / reach[..., 1])
    used = (boxes[..., 2] > 0)[:, None]
    nearest = away.masked_fill((away > 1) | ~used, torch.inf).min(dim=2)
    return torch.where(nearest.values.isfinite(), nearest.indices, -1)


def oriented_loss(
    grid: Tensor, predicted: tuple[Tensor, Tensor, Tensor], boxes: Tensor, labels: Tensor
) -> Tensor:
    """Compute the loss of one batch.

    Args:
        grid: (2, A), cell centres in network pixels.
        predicted: (B, 4, A) cx, cy, w, h in network pixels, (B, 2, A) sine and cosine of twice the
            angle, and (B, C, A) class logits.
        boxes: (B, M, 5), as in `assign`.
        labels: int64 (B, M).

    Returns:
        Scalar.
    """
    predicted_boxes, axes, logits = predicted
    chosen = assign(grid, boxes)
    image, cell = torch.nonzero(chosen >= 0, as_tuple=True)
    true = boxes[image, chosen[image, cell]]
    double = torch.stack([(2 * true[:, 4]).sin(), (2 * true[:, 4]).cos()], dim=1)
    turned = axes[image, :, cell]
    unit = nn.functional.normalize(turned, dim=1)
    likeness = gaussian_iou(predicted_boxes[image, :, cell], unit, true[:, :4], double)
    target = torch.zeros_like(logits)
    target[image, labels[image, chosen[image, cell]], cell] = likeness.detach()
    weight = (target - logits.sigmoid()).abs().detach() ** 2
    entropy = nn.functional.binary_cross_entropy_with_logits(logits, target, reduction="none")
    positives = max(len(cell), 1)
    # The likeness of a box as wide as long says nothing of its angle: the axis has its own term.
    axis = (turned - double).square().sum()
    boxes_off = _BOX_WEIGHT * (1 - likeness).sum() + _AXIS_WEIGHT * axis
    return ((weight * entropy).sum() + boxes_off) / positives


def gaussian_iou(left: Tensor, left_axis: Tensor, right: Tensor, right_axis: Tensor) -> Tensor:
    """Return the likeness, 0..1, of paired boxes as Gaussians: one minus their Hellinger distance.

    Args:
        left: (N, 4), cx, cy, w, h.
        left_axis: (N, 2), sine and cosine of twice the angle.
        right: as `left`.
        right_axis: as `left_axis`.
    """
    xx, yy, xy = (
        left_value + right_value
        for left_value, right_value in zip(
            _covariance(left, left_axis), _covariance(right, right_axis), strict=True
        )
    )
    dx, dy = (left[:, :2] - right[:, :2]).unbind(dim=1)
    determinant = (xx * yy - xy.square()).clamp(min=1e-6)
    apart = (yy * dx.square() + xx * dy.square() - 2 * xy * dx * dy) / determinant / 4
    areas = (left[:, 2:].prod(dim=1) * right[:, 2:].prod(dim=1) / 144).clamp(min=1e-6)
    spread = (determinant / (4 * areas)).clamp(min=1e-6).log() / 2
    coefficient = (-(apart + spread).clamp(1e-4, 100)).exp()
    return 1 - (1 - coefficient).sqrt()


def _covariance(boxes: Tensor, axis: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return variance in x, in y, and covariance of boxes as Gaussians."""
    along, across = (boxes[:, 2:].square() / 12).unbind(dim=1)
    mean, half = (along + across) / 2, (along - across) / 2
    return mean + half * axis[:, 1], mean - half * axis[:, 1], half * axis[:, 0]
