"""Exports random detectors of libraries for torch, and what LibreYOLO exports, with the libraries' answers beside them.

Run by `test_detectors.py`, with a Python that has torchvision, rfdetr and libreyolo: it writes `<model>/` for
each model to the folder given, with images, `answer.toml` and `expected.json`.
"""

import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from libreyolo import LibreDeepLabv3, LibreResNet
from pictures import SIZES, picture
from PIL import Image
from rfdetr import RFDETRNano
from torch_export import (
    LABELS,
    NAMED,
    Answer,
    mapped,
    normalised,
    opened,
    scored,
    settle,
    stacked,
    version,
    write,
)
from torchvision.models import detection

UNNAMED = [f"class_{index}" for index in range(7)]


def boxed(boxes: Any, scores: Any, classes: Any, labels: Any = LABELS) -> Answer:
    """Return the boxes above the widest gap between the best scores, which no rounding moves them over."""
    scores = torch.as_tensor(scores).double()
    best = scores.sort(descending=True).values[3:40]
    widest = int((best[:-1] - best[1:]).argmax())
    threshold = (best[widest] + best[widest + 1]).item() / 2
    rows = [
        (labels[int(index)], score, box)
        for box, score, index in zip(
            torch.as_tensor(boxes).tolist(), scores.tolist(), torch.as_tensor(classes), strict=True
        )
        if score > threshold
    ]
    return {"threshold": threshold, "boxes": rows}


@torch.no_grad()
def spread(module: torch.nn.Module, run: Callable[[], Any], std: float, mean: float = 0) -> None:
    """Give the answers of a convolution or a linear layer a mean and a deviation, over all that it is asked."""
    seen: list[torch.Tensor] = []
    hook = module.register_forward_hook(lambda *arguments: seen.append(arguments[2].flatten()))
    run()
    hook.remove()
    answered = torch.cat(seen)
    factor = std / answered.std()
    module.weight *= factor
    if module.bias is not None:
        module.bias.copy_((module.bias - answered.mean()) * factor + mean)


def write_torchvision(root: Path) -> None:
    """Write detectors of torchvision, which resize and suppress overlaps in their graph."""
    options = {"weights": None, "weights_backbone": None, "num_classes": 8}
    images = [opened_picture(name) for name in SIZES]
    torch.manual_seed(1)
    faster = detection.fasterrcnn_mobilenet_v3_large_320_fpn(
        **options, min_size=128, max_size=256, box_score_thresh=0.0
    )
    settle(faster.backbone, normalised(stacked((224, 160))), None)
    predictor = faster.roi_heads.box_predictor
    heads = (
        (faster.rpn.head.cls_logits, 2, 0),
        (predictor.cls_score, 2, 0),
        (predictor.bbox_pred, 1, 0),
    )
    write_boxes(
        root / "torchvision-fasterrcnn", faster.eval(), images, heads, ["boxes", "labels", "scores"]
    )
    retina = detection.retinanet_resnet50_fpn(
        **options, min_size=128, max_size=256, score_thresh=0.0
    )
    settle(retina.backbone, normalised(stacked((224, 160))), None)
    heads = (
        (retina.head.classification_head.cls_logits, 1, -3),
        (retina.head.regression_head.bbox_reg, 0.3, 0),
    )
    write_boxes(
        root / "torchvision-retinanet", retina.eval(), images, heads, ["boxes", "scores", "labels"]
    )


def write_boxes(
    folder: Path, model: Any, images: list[torch.Tensor], heads: Any, outputs: list[str]
) -> None:
    """Write a detector of torchvision, its heads spread and its outputs in the order that it gives them."""
    for head, std, mean in heads:
        spread(head, lambda: model(images), std, mean)

    @torch.no_grad()
    def answer(file: Path) -> Answer:
        (result,) = model([opened(file)[0]])
        return boxed(result["boxes"], result["scores"], result["labels"] - 1)

    def export_to(path: Path) -> None:
        axes = {"image": {1: "height", 2: "width"}} | {name: {0: "n"} for name in outputs}
        names = {"input_names": ["image"], "output_names": outputs, "dynamic_axes": axes}
        torch.onnx.export(model, ([images[0]],), path, dynamo=False, opset_version=17, **names)

    write(folder, version("torchvision"), NAMED, answer, export_to)


def opened_picture(name: str) -> torch.Tensor:
    return torch.from_numpy(np.array(picture(name))).permute(2, 0, 1).float() / 255


def write_rfdetr(root: Path) -> None:
    """Write RF-DETR by its own `export`, which names its classes in metadata; `predict` is the reference."""
    torch.manual_seed(1)
    library = RFDETRNano(
        pretrain_weights=None,
        num_classes=6,
        resolution=96,
        positional_encoding_size=6,
        num_queries=20,
        num_select=20,
        device="cpu",
    )
    network = library.model.model.eval()
    images = [picture(name, (96, 96)) for name in SIZES]

    def run() -> None:
        for image in images:
            library.predict(image, threshold=0)

    for name, weight in network.named_parameters():
        if "query_feat" in name:
            torch.nn.init.normal_(weight, std=1)
    spread(network.class_embed, run, 1.5, -2)
    torch.nn.init.normal_(network.bbox_embed.layers[-1].weight, std=0.1)

    def answer(file: Path) -> Answer:
        result = library.predict(Image.open(file), threshold=0)
        return boxed(result.xyxy, result.confidence, result.class_id, UNNAMED)

    def export_to(path: Path) -> None:
        with tempfile.TemporaryDirectory() as folder:
            library.export(output_dir=folder, verbose=False)
            (written,) = Path(folder).rglob("*.onnx")
            shutil.move(written, path)

    # of the network's size: the library resizes floats, and random queries change places by less than half a level
    write(root / "rfdetr-nano", version("rfdetr"), "", answer, export_to, size_wh=(96, 96))


def write_libreyolo(root: Path) -> None:
    """Write what LibreYOLO exports, whose metadata has the keys of Ultralytics; its `predict` is the reference."""
    names = dict(enumerate(LABELS))
    resnet = LibreResNet(size="18", nb_classes=7, device="cpu")
    resnet.names = names
    settle(resnet.model, normalised(stacked((224, 224))), resnet.model.fc)
    semantic = LibreDeepLabv3(nb_classes=7, device="cpu")
    semantic.names = names
    settle(semantic.model, normalised(stacked((520, 520))), semantic.model.classifier[-1])

    def answer(file: Path) -> Answer:
        return scored(resnet.predict(file).probs.data)

    def answer_map(file: Path) -> Answer:
        return mapped(file, semantic.predict(file).semantic_mask.data)

    cubic = '[input]\ninterpolation = "cubic"\ncrop_fraction = 0.95\n'
    for title, library, read, toml in (
        ("resnet", resnet, answer, f'family = "torchvision-classifier"\n{cubic}'),
        ("deeplabv3", semantic, answer_map, 'family = "torchvision-semantic"\n'),
    ):

        def export_to(path: Path, library: Any = library) -> None:
            library.export(format="onnx", output_path=str(path), dynamic=False)

        write(root / f"libreyolo-{title}", version("libreyolo"), toml, read, export_to)


def main(root: Path) -> None:
    for write_models in (write_torchvision, write_rfdetr, write_libreyolo):
        write_models(root)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
