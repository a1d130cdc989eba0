"""Exports random classifiers of libraries for torch, and writes what each library answers beside them.

Run by `test_classifiers.py`, with a Python that has open_clip_torch, efficientnet_pytorch, pytorchcv, vit-pytorch,
torchvision and torchxrayvision: it writes `<model>/` for each model to the folder given.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import open_clip
import torch
import torchxrayvision
import vit_pytorch
from efficientnet_pytorch import EfficientNet
from pictures import SIZES, picture
from PIL import Image
from pytorchcv.model_provider import get_model
from torch_export import LABELS, MEAN, NAMED, STD, Answer, export, scored, settle, version, write
from torchvision import models
from torchvision.transforms import v2


def write_open_clip(root: Path) -> None:
    """OpenCLIP: a zero-shot classifier, the image encoder with the embeddings of texts."""
    vision = {"image_size": 64, "layers": 2, "width": 64, "patch_size": 16, "head_width": 16}
    text = {"context_length": 77, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 1}
    torch.manual_seed(3)
    clip = open_clip.CLIP(32, vision, text)
    for name, weight in clip.visual.named_parameters():
        if weight.ndim > 1 or "class_embedding" in name:
            torch.nn.init.normal_(
                weight, std=1.5 / weight[0].numel() ** 0.5 if weight.ndim > 1 else 1
            )
    clip.eval()
    prepare = open_clip.image_transform(64, is_train=False)
    with torch.no_grad():
        texts = clip.encode_text(open_clip.get_tokenizer("ViT-B-32")(LABELS), normalize=True)

    class ZeroShot(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.clip = clip.visual
            self.texts = torch.nn.Parameter(texts.T)

        def forward(self, pixels: torch.Tensor) -> torch.Tensor:
            features = torch.nn.functional.normalize(self.clip(pixels), dim=-1)
            return (10 * features @ self.texts).softmax(-1)

    model = ZeroShot().eval()

    @torch.no_grad()
    def answer(file: Path) -> Answer:
        features = clip.encode_image(prepare(Image.open(file))[None], normalize=True)
        return scored((10 * features @ texts.T).softmax(-1)[0])

    mean, std = list(open_clip.OPENAI_DATASET_MEAN), list(open_clip.OPENAI_DATASET_STD)
    toml = f'family = "plain-classifier"\n{NAMED}[input]\nresize = "shortest_crop"\ncrop_fraction = 1.0\n'
    toml += f'interpolation = "cubic"\nmean = {mean}\nstd = {std}\n'
    pixels = torch.rand(2, 3, 64, 64)
    for title, dynamo in (("zero-shot", True), ("zero-shot-torchscript", False)):
        write(
            root / f"open-clip-{title}",
            version("open_clip_torch"),
            toml,
            answer,
            lambda path, dynamo=dynamo: export(model, pixels, path, dynamo=dynamo),
        )


def write_usual(root: Path) -> None:
    """Classifiers of libraries that leave the preparation of an image to torchvision."""
    usual = v2.Compose([v2.Resize(256), v2.CenterCrop(224), v2.ToTensor(), v2.Normalize(MEAN, STD)])
    plain = v2.Compose([v2.Resize((224, 224)), v2.ToTensor()])
    preset = models.ShuffleNet_V2_X0_5_Weights.DEFAULT.transforms
    efficient = EfficientNet.from_name("efficientnet-b0", num_classes=7)
    efficient.set_swish(memory_efficient=False)
    vit = vit_pytorch.SimpleViT(
        image_size=224, patch_size=32, num_classes=7, dim=32, depth=2, heads=2, mlp_dim=64
    )
    resnet, sepreresnet = (
        get_model("resnet10", num_classes=7),
        get_model("diaresnet10", num_classes=7),
    )
    shuffle = models.shufflenet_v2_x0_5(num_classes=7)
    cropped = f'family = "torchvision-classifier"\n{NAMED}[input]\n'
    networks = (
        ("efficientnet", "efficientnet_pytorch", efficient, efficient._fc, usual, False),
        ("vit", "vit-pytorch", vit, vit.linear_head, plain, True),
        ("resnet10", "pytorchcv", resnet, resnet.output, usual, True),
        ("diaresnet10", "pytorchcv", sepreresnet, sepreresnet.output, usual, False),
        (
            "shufflenet",
            "torchvision",
            shuffle,
            shuffle.fc,
            preset(),
            True,
        ),
    )
    for title, distribution, model, head, prepare, dynamo in networks:
        settle(model, torch.stack([prepare(picture(name)) for name in SIZES]), head)

        @torch.no_grad()
        def answer(file: Path, model: Any = model, prepare: Any = prepare) -> Answer:
            return scored(model(prepare(Image.open(file).convert("RGB"))[None]).softmax(-1)[0])

        toml = (
            f'family = "plain-classifier"\n{NAMED}'
            if prepare is plain
            else f"{cropped}crop_fraction = {224 / 256}\n"
        )
        write(
            root / f"{distribution}-{title}",
            version(distribution),
            toml,
            answer,
            lambda path, m=model, d=dynamo: export(m, torch.rand(2, 3, 224, 224), path, dynamo=d),
        )


def write_xray(root: Path) -> None:
    """TorchXRayVision: gray images of its own range, and a probability for each finding."""
    model = torchxrayvision.models.DenseNet(
        num_classes=7, in_channels=1, growth_rate=8, block_config=(2, 2, 2, 2)
    )
    model.apply_sigmoid = True
    prepare = torchxrayvision.datasets.XRayResizer(224, engine="cv2")

    def pixels_of(image: Any) -> torch.Tensor:
        gray = torchxrayvision.datasets.normalize(np.array(image), 255)
        return torch.from_numpy(prepare(gray[None])).float()

    settle(
        model,
        torch.stack([pixels_of(picture(name, (224, 224)).convert("L")) for name in SIZES]),
        model.classifier,
    )

    @torch.no_grad()
    def answer(file: Path) -> Answer:
        return scored(model(pixels_of(Image.open(file))[None])[0])

    toml = f'family = "plain-classifier"\n{NAMED}[input]\nscale = {2048 / 255}\nmean = [1024]\nstd = [1]\n'
    toml += 'interpolation = "area"\nantialias = false\n'
    write(
        root / "torchxrayvision-densenet",
        version("torchxrayvision"),
        toml,
        answer,
        lambda path: export(model, torch.rand(2, 1, 224, 224), path, dynamo=False),
        size_wh=(224, 224),
        mode="L",
    )


def main(root: Path) -> None:
    for write_models in (write_open_clip, write_usual, write_xray):
        write_models(root)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
