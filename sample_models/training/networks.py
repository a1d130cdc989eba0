"""The small networks on images: a classifier, two anchor-free detectors and a U-Net."""

from itertools import pairwise

import torch
from torch import Tensor, nn

STRIDE_PX = 8


def convolve(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
    """Build a 3x3 convolution with batch normalisation and ReLU."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    )


class Residual(nn.Module):
    """Two 3x3 convolutions added to their input."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            convolve(channels, channels),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
        )

    def forward(self, features: Tensor) -> Tensor:
        """Map (B, C, H, W) to the same shape."""
        return torch.relu(features + self.body(features))


class Classifier(nn.Module):
    """Classify a whole image.

    Args:
        classes: number of classes.
    """

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            convolve(3, 16, 2),
            convolve(16, 24, 2),
            convolve(24, 48),
            nn.MaxPool2d(2),
            convolve(48, 64),
            Residual(64),
        )
        self.classify = nn.Linear(64, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Map float32 (B, 3, H, W), RGB, 0..1, to logits (B, classes)."""
        logits: Tensor = self.classify(self.features(images).mean(dim=(2, 3)))
        return logits


def _fine_branch() -> nn.Sequential:
    """Build 48 channels of stride 8 from an image."""
    return nn.Sequential(convolve(3, 16, 2), convolve(16, 32, 2), convolve(32, 48, 2), Residual(48))


def _coarse_branch() -> nn.Sequential:
    """Build context of stride 16 for 48 channels of stride 8, and bring it back to them."""
    return nn.Sequential(
        convolve(48, 64, 2),
        Residual(64),
        nn.Conv2d(64, 48, 1),
        nn.Upsample(scale_factor=2, mode="nearest"),
    )


class Detector(nn.Module):
    """Detect objects from one grid of stride 8, with a coarser branch for context.

    Args:
        classes: number of classes.
        size_px: width and height of the network input, a multiple of 32.
    """

    grid: Tensor

    def __init__(self, classes: int, size_px: int) -> None:
        super().__init__()
        self.classes = classes
        self.fine = _fine_branch()
        self.coarse = _coarse_branch()
        self.join = convolve(48, 56)
        self.box_head = nn.Sequential(convolve(56, 48), nn.Conv2d(48, 4, 1))
        self.class_head = nn.Sequential(convolve(56, 48), nn.Conv2d(48, classes, 1))
        nn.init.constant_(self.class_head[-1].bias, -4.0)  # type: ignore[arg-type]
        self.register_buffer("grid", cell_centres(size_px), persistent=False)

    def predict(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Predict boxes and class logits of every grid cell.

        Args:
            images: float32 (B, 3, size, size), RGB, 0..1.

        Returns:
            (B, 4, A) distances from the cell centre to left, top, right and bottom, in network
            pixels, and (B, classes, A) logits.
        """
        fine = self.fine(images)
        joined = self.join(fine + self.coarse(fine))
        distances = nn.functional.softplus(self.box_head(joined)) * STRIDE_PX
        # Sizes as constants: the exported graph then needs no shape arithmetic.
        cells = self.grid.shape[1]
        logits = self.class_head(joined).reshape(-1, self.classes, cells)
        return distances.reshape(-1, 4, cells), logits

    def forward(self, images: Tensor) -> Tensor:
        """Map images to (B, 4 + classes, A): cx, cy, w, h in network pixels, then probabilities."""
        distances, logits = self.predict(images)
        top_left, bottom_right = distances[:, :2], distances[:, 2:]
        centres = self.grid + (bottom_right - top_left) / 2
        return torch.cat([centres, top_left + bottom_right, logits.sigmoid()], dim=1)


class OrientedDetector(nn.Module):
    """Detect objects with oriented boxes, from the same grid and branches as `Detector`.

    Args:
        classes: number of classes.
        size_px: width and height of the network input, a multiple of 32.
    """

    grid: Tensor

    def __init__(self, classes: int, size_px: int) -> None:
        super().__init__()
        self.classes = classes
        self.fine = _fine_branch()
        self.coarse = _coarse_branch()
        self.join = convolve(48, 56)
        self.box_head = nn.Sequential(convolve(56, 56), nn.Conv2d(56, 6, 1))
        self.class_head = nn.Sequential(convolve(56, 48), nn.Conv2d(48, classes, 1))
        nn.init.constant_(self.class_head[-1].bias, -4.0)  # type: ignore[arg-type]
        self.register_buffer("grid", cell_centres(size_px), persistent=False)

    def predict(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Predict boxes, their axes and class logits of every grid cell.

        Args:
            images: float32 (B, 3, size, size), RGB, 0..1.

        Returns:
            (B, 4, A) cx, cy, w, h in network pixels, (B, 2, A) sine and cosine of twice the angle,
            of any length, and (B, classes, A) logits.
        """
        fine = self.fine(images)
        joined = self.join(fine + self.coarse(fine))
        cells = self.grid.shape[1]
        raw = self.box_head(joined).reshape(-1, 6, cells)
        centres = self.grid + raw[:, :2] * STRIDE_PX
        sizes = (raw[:, 2:4] + 1).clamp(max=4).exp() * STRIDE_PX
        logits = self.class_head(joined).reshape(-1, self.classes, cells)
        return torch.cat([centres, sizes], dim=1), raw[:, 4:], logits

    def forward(self, images: Tensor) -> Tensor:
        """Map images to (B, 4 + classes + 1, A): cx, cy, w, h, probabilities, angle in radians.

        A box turned by half a turn is the same box: the network predicts the double angle, which
        has no jump, and the answer lies in -pi/2..pi/2.
        """
        boxes, axes, logits = self.predict(images)
        angle = torch.atan2(axes[:, :1], axes[:, 1:]) / 2
        return torch.cat([boxes, logits.sigmoid(), angle], dim=1)


class Segmenter(nn.Module):
    """Name the class of every pixel: a U-Net whose skips are added, not concatenated.

    Args:
        classes: number of classes, background included.
    """

    def __init__(self, classes: int) -> None:
        super().__init__()
        widths = (12, 24, 48, 64, 64)
        self.down = nn.ModuleList([convolve(3, widths[0])])
        self.down.extend(
            nn.Sequential(convolve(finer, coarser, 2), convolve(coarser, coarser))
            for finer, coarser in pairwise(widths)
        )
        self.middle = Residual(widths[-1])
        self.up = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(coarser, finer, 1),
                nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False),
            )
            for finer, coarser in pairwise(widths)
        )
        self.join = nn.ModuleList(convolve(width, width) for width in widths[:-1])
        self.classify = nn.Conv2d(widths[0], classes, 1)

    def forward(self, images: Tensor) -> Tensor:
        """Map float32 (B, 3, H, W), RGB, 0..1, to logits (B, classes, H, W).

        Height and width are multiples of 16.
        """
        skips = []
        features = images
        for block in self.down:
            features = block(features)
            skips.append(features)
        features = self.middle(skips.pop())
        for rise, join in zip(reversed(self.up), reversed(self.join), strict=True):
            features = join(rise(features) + skips.pop())
        logits: Tensor = self.classify(features)
        return logits


def cell_centres(size_px: int) -> Tensor:
    """Return float32 (2, A): x and y of the cell centres in network pixels, row by row."""
    steps = (torch.arange(size_px // STRIDE_PX, dtype=torch.float32) + 0.5) * STRIDE_PX
    y, x = torch.meshgrid(steps, steps, indexing="ij")
    return torch.stack([x.flatten(), y.flatten()])
