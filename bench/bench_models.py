"""Models of benchmarks, made by the onnx package: classifiers with random weights and a known cost.

`tiny` has 1,600 weights and takes 32 x 32 pixels, so that all but the model is what a request costs; `r18` has the blocks
of ResNet-18 and `mobile` those of MobileNetV2, and both take 224 x 224 pixels.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import helper

from tests.onnx_models import CLASSIFIER_TOML, save, value

TINY, R18, MOBILE = "tiny", "r18", "mobile"
CLASSES = {TINY: 10, R18: 1000, MOBILE: 1000}
SIDES = {TINY: 32, R18: 224, MOBILE: 224}


class _Network:
    """Nodes and weights of a network that grows from its input."""

    def __init__(self, seed: int) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, np.ndarray] = {}
        self._random = np.random.default_rng(seed)

    def add(self, operator: str, inputs: list[str], output: str = "", **attributes: object) -> str:
        """Add a node, and return the name of its output."""
        output = output or f"{operator}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [output], **attributes))
        return output

    def weight(self, *shape: int) -> str:
        """Add a weight that keeps the variance of what passes through it."""
        name = f"weight_{len(self.weights)}"
        fan_in = max(int(np.prod(shape[1:])), 1)
        values = self._random.normal(0, np.sqrt(2 / fan_in), shape)
        self.weights[name] = values.astype(np.float32)
        return name

    def convolve(
        self, source: str, channels: tuple[int, int], side: int, stride: int = 1, *, groups: int = 1
    ) -> str:
        """Add a convolution."""
        weight = self.weight(channels[1], channels[0] // groups, side, side)
        pads = [side // 2] * 4
        return self.add("Conv", [source, weight], strides=[stride] * 2, pads=pads, group=groups)

    def block(self, source: str, channels: tuple[int, int], stride: int) -> str:
        """Add a basic block of a residual network."""
        inner = self.add("Relu", [self.convolve(source, channels, 3, stride)])
        inner = self.convolve(inner, (channels[1], channels[1]), 3)
        if channels[0] != channels[1]:
            source = self.convolve(source, channels, 1, stride)
        return self.add("Relu", [self.add("Add", [source, inner])])

    def relu6(self, source: str) -> str:
        """Add a Relu that ends at 6."""
        for name, limit in (("zero", 0), ("six", 6)):
            self.weights[name] = np.float32(limit)
        return self.add("Clip", [source, "zero", "six"])

    def inverted_block(self, source: str, channels: tuple[int, int], stride: int) -> str:
        """Add a block of a MobileNetV2: wider by six, each channel by itself, and narrow again."""
        wide = channels[0] * 6
        inner = self.relu6(self.convolve(source, (channels[0], wide), 1))
        inner = self.relu6(self.convolve(inner, (wide, wide), 3, stride, groups=wide))
        inner = self.convolve(inner, (wide, channels[1]), 1)
        if channels[0] == channels[1] and stride == 1:
            return self.add("Add", [source, inner])
        return inner

    def classify(self, source: str, channels: int, classes: int) -> None:
        """Add the mean over the image, and the scores of each class as the graph's output."""
        mean = self.add("GlobalAveragePool", [source])
        flat = self.add("Flatten", [mean])
        self.add("MatMul", [flat, self.weight(channels, classes)], "scores")


def _tiny() -> _Network:
    tiny = _Network(1)
    hidden = tiny.add("Relu", [tiny.convolve("image", (3, 8), 3, 2)])
    hidden = tiny.add("Relu", [tiny.convolve(hidden, (8, 16), 3, 2)])
    tiny.classify(hidden, 16, CLASSES[TINY])
    return tiny


def _r18() -> _Network:
    r18 = _Network(2)
    hidden = r18.add("Relu", [r18.convolve("image", (3, 64), 7, 2)])
    hidden = r18.add("MaxPool", [hidden], kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    channels = 64
    for wider, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        hidden = r18.block(hidden, (channels, wider), stride)
        hidden = r18.block(hidden, (wider, wider), 1)
        channels = wider
    r18.classify(hidden, channels, CLASSES[R18])
    return r18


def _mobile() -> _Network:
    mobile = _Network(3)
    hidden = mobile.relu6(mobile.convolve("image", (3, 16), 3, 2))
    channels = 16
    for wider, blocks, stride in (
        (24, 2, 2), (32, 3, 2), (64, 4, 2), (96, 3, 1), (160, 3, 2), (320, 1, 1)
    ):  # fmt: skip
        for block in range(blocks):
            hidden = mobile.inverted_block(hidden, (channels, wider), 1 if block else stride)
            channels = wider
    hidden = mobile.relu6(mobile.convolve(hidden, (channels, 1280), 1))
    mobile.classify(hidden, 1280, CLASSES[MOBILE])
    return mobile


NETWORKS = {TINY: _tiny, R18: _r18, MOBILE: _mobile}


def write_models(folder: Path, names: Sequence[str] = (TINY, R18)) -> Path:
    """Write models with their model.toml; return the folder."""
    for name in names:
        network = NETWORKS[name]()
        image = value("image", ["batch", 3, SIDES[name], SIDES[name]])
        scores = value("scores", ["batch", CLASSES[name]])
        path = folder / name / "model.onnx"
        save(path, network.nodes, [image], [scores], network.weights)
        labels = [f"class {number}" for number in range(CLASSES[name])]
        (path.parent / "model.toml").write_text(f"labels = {labels}\n{CLASSIFIER_TOML}")
    return folder
