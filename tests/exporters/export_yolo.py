"""Exports tiny random models of Ultralytics, and writes what `predict` answers beside them.

Run by `test_yolo.py`, with a Python that has torch, torchvision, ultralytics and onnxruntime: it writes
`<model>/` for each model to the folder given, with images and `expected.json`.
"""

import json
import os
import sys
from pathlib import Path

os.environ.update({"YOLO_OFFLINE": "true", "YOLO_AUTOINSTALL": "false", "YOLO_VERBOSE": "false"})

import numpy as np
import torch
from pictures import SIZES, picture
from PIL import Image
from ultralytics import YOLO
from ultralytics.data.augment import LetterBox
from ultralytics.nn.tasks import yaml_model_load
from ultralytics.utils import YAML

LABELS = dict(enumerate(["plate", "Zebra", "apple", "key", "Boat", "nut", "eel"]))
SIZE_HW = (96, 128)
OPEN_HW = (640, 640)
SQUARE = 64
CONF, IOU = 0.3, 0.6
EVEN = {"landscape": (320, 200), "portrait": (160, 240), "small": (40, 30)}
"""Sizes that one factor brings to `SIZE_HW`: with two, the library scales turned boxes as upright ones."""
SPREADS = {"cv2": (3, 0.7), "cv3": (-3.5, 1), "cv4": (0, 1)}
"""Mean and standard deviation of what a head's branches answer: boxes, classes, masks or angles."""
MODELS = {
    "detect": ("yolo11n", {}),
    "detect-nms": ("yolo11n", {"nms": True, "conf": CONF, "iou": IOU}),
    "detect-open": ("yolo11n", {"dynamic": True}),
    "detect-v8": ("yolov8n", {}),
    "detect-26": ("yolo26n", {}),
    "detect-end2end": ("yolo26n", {"nms": False}),
    "detect-v10": ("yolov10n", {"nms": False}),
    "segment": ("yolo11n-seg", {}),
    "segment-nms": ("yolo11n-seg", {"nms": True, "conf": CONF, "iou": IOU}),
    "segment-end2end": ("yolo26n-seg", {"nms": False}),
    "oriented": ("yolo11n-obb", {}),
    "oriented-nms": ("yolo11n-obb", {"nms": True, "conf": CONF, "iou": IOU}),
    "oriented-end2end": ("yolo26n-obb", {"nms": False}),
    "classify": ("yolo11n-cls", {}),
}


def built(name: str, folder: Path, size_hw: tuple[int, int]) -> YOLO:
    """Make a model of a few classes, whose answers depend on the image."""
    config = {**yaml_model_load(f"{name}.yaml"), "nc": len(LABELS)}
    path = folder / f"{name}.yaml"
    YAML.save(path, {key: value for key, value in config.items() if key != "yaml_file"})
    model = YOLO(path)
    path.unlink()
    model.model.names = LABELS
    network = model.model.eval()
    torch.manual_seed(5)
    for module in network.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.weight.uniform_(0.8, 1.2)
            module.bias.normal_(std=0.2)
        elif isinstance(module, torch.nn.Conv2d | torch.nn.Linear):
            fan_in = module.weight[0].numel()
            if module.weight.requires_grad:
                torch.nn.init.normal_(module.weight, std=1.3 / fan_in**0.5)
    settle(network, size_hw)
    return model


def drawn(name: str, task: str) -> Image.Image:
    return picture(name).resize(EVEN[name]) if task == "obb" else picture(name)


def settle(network: torch.nn.Module, size_hw: tuple[int, int]) -> None:
    """Return each layer's norm the mean and spread it meets, and each head answers of a wanted spread."""
    placed = LetterBox(size_hw, auto=False, scale_fill=size_hw == OPEN_HW)
    pixels = np.stack([placed(image=np.array(drawn(name, network.task))) for name in SIZES])
    images = torch.from_numpy(pixels).permute(0, 3, 1, 2) / 255
    norms = [layer for layer in network.modules() if isinstance(layer, torch.nn.BatchNorm2d)]
    for norm in norms:
        norm.momentum = 1.0
        norm.train()
    network(images)
    for norm in norms:
        norm.eval()
    for name, last in network.model[-1].named_modules():
        branch = name.removeprefix("one2one_").split(".")[0]
        last_of_branch = isinstance(last, torch.nn.Conv2d) and name.endswith(".2")
        if branch not in SPREADS or not last_of_branch:
            continue
        mean, spread = SPREADS[branch]
        seen = []
        hook = last.register_forward_hook(lambda *arguments, seen=seen: seen.append(arguments[2]))
        network(images)
        hook.remove()
        if not seen:
            continue
        met = seen[0].transpose(0, 1).flatten(1)
        scale = spread / met.std(1)
        last.weight *= scale[:, None, None, None]
        last.bias.copy_((last.bias - met.mean(1)) * scale + mean)


def read(result) -> dict:
    """Return what one image was answered, as JSON, but for masks."""
    if result.probs is not None:
        scores = result.probs.data.tolist()
        return {"scores": dict(zip(LABELS.values(), scores, strict=True))}
    result_boxes = result.boxes if result.obb is None else result.obb
    boxes = result_boxes.xyxy if result.obb is None else result_boxes.xyxyxyxy
    labels = [LABELS[int(index)] for index in result_boxes.cls]
    rows = zip(labels, result_boxes.conf.tolist(), boxes.tolist(), strict=True)
    return {"boxes": list(rows)}


@torch.no_grad()
def write(folder: Path, network: str, options: dict) -> None:
    folder.mkdir()
    is_open = "dynamic" in options
    size = (SQUARE, SQUARE) if network.endswith("-cls") else SIZE_HW
    # where the size is left open, predict takes 640 and as little border as it can
    model = built(network, folder, OPEN_HW if is_open else size)
    os.chdir(folder)
    written = Path(model.export(format="onnx", imgsz=size, simplify=False, opset=17, **options))
    written.rename(folder / "model.onnx")
    library = YOLO(folder / "model.onnx", task=model.task)
    size_options = {} if is_open else {"imgsz": size, "rect": False}
    cases = {}
    for image in SIZES:
        drawn(image, model.task).save(folder / f"{image}.png")
        (result,) = library.predict(
            folder / f"{image}.png", conf=CONF, iou=IOU, retina_masks=True, **size_options
        )
        cases[f"{image}.png"] = read(result)
        if result.masks is not None:
            masks = result.masks.data.numpy() > 0
            for number, mask in enumerate(masks):
                Image.fromarray(mask.astype(np.uint8)).save(folder / f"{image}-{number}.png")
    (folder / "expected.json").write_text(json.dumps({"conf": CONF, "iou": IOU, "images": cases}))


def main(root: Path) -> None:
    for name, (network, options) in MODELS.items():
        write(root / name, network, options)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
