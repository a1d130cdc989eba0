"""Exports random segmenters of libraries for torch, and writes what each library answers beside them.

Run by `test_segmenters.py`, with a Python that has segmentation-models-pytorch, monai, torchgeo and python-doctr: it
writes `<model>/` for each model to the folder given, with images, `answer.toml` and `expected.json`.
"""

import functools
import sys
from pathlib import Path
from typing import Any

import numpy as np
import segmentation_models_pytorch as smp
import torch
from doctr.models import classification, detection
from doctr.models.preprocessor import PreProcessor
from doctr.models.utils import export_model_to_onnx
from monai.networks.nets import DenseNet121, SegResNet, UNet
from monai.networks.utils import convert_to_onnx
from monai.transforms import (
    AsDiscrete,
    Compose,
    EnsureChannelFirst,
    ScaleIntensityRange,
)
from pictures import SIZES, picture, write_expected
from PIL import Image
from torch_export import (
    MEAN,
    NAMED,
    SIZE_WH,
    STD,
    Answer,
    export,
    mapped,
    normalised,
    opened,
    scored,
    settle,
    stacked,
    version,
    write,
)
from torchgeo.trainers import ClassificationTask, SemanticSegmentationTask


def write_smp(root: Path) -> None:
    """segmentation_models_pytorch: its preprocessing, `predict`, and argmax or one half."""
    name = "segmentation-models-pytorch"
    networks = (
        ("unet", smp.Unet, "resnet18", 7, None, True),
        ("unet-sigmoid", smp.Unet, "mobilenet_v2", 1, "sigmoid", False),
        ("unetplusplus", smp.UnetPlusPlus, "resnet18", 1, None, True),
        ("fpn-softmax", smp.FPN, "mobilenet_v2", 7, "softmax2d", False),
        ("deeplabv3plus", smp.DeepLabV3Plus, "resnet18", 7, None, True),
        ("manet", smp.MAnet, "resnet18", 1, None, False),
        ("linknet", smp.Linknet, "resnet18", 7, None, True),
        ("segformer", smp.Segformer, "mit_b0", 7, None, False),
        ("upernet", smp.UPerNet, "resnet18", 7, None, True),
    )
    for title, network, encoder, classes, activation, dynamo in networks:
        model = network(encoder, encoder_weights=None, classes=classes, activation=activation)
        prepare = functools.partial(
            # get_preprocessing_fn reads these very numbers from a hub
            smp.encoders.preprocess_input,
            mean=MEAN,
            std=STD,
            input_range=[0, 1],
        )

        def pixels_of(image: Any, prepare: Any = prepare) -> torch.Tensor:
            return torch.from_numpy(prepare(np.asarray(image)).transpose(2, 0, 1)).float()

        pixels = torch.stack([pixels_of(picture(image, SIZE_WH)) for image in SIZES])
        settle(model, pixels, model.segmentation_head[0])

        def answer(file: Path, model: Any = model, pixels_of: Any = pixels_of) -> Answer:
            scores = model.predict(pixels_of(Image.open(file))[None])[0]
            if len(scores) > 1:
                return mapped(file, scores.argmax(0))
            border = 0.5 if scores.min() >= 0 and scores.max() <= 1 else 0
            return mapped(file, scores[0] > border)

        family = "torchvision-semantic" if classes > 1 else "binary-segmentation"
        toml = f'family = "{family}"\n' + (NAMED if classes > 1 else 'labels = ["thing"]\n')
        how = ", torch.export" if dynamo else ", TorchScript"
        write(
            root / f"smp-{title}",
            version(name, how),
            toml,
            answer,
            lambda path, m=model, p=pixels, d=dynamo: export(m, p[:2], path, dynamo=d),
            size_wh=SIZE_WH,
        )


def write_monai(root: Path) -> None:
    """MONAI: its transforms, `convert_to_onnx`, and `AsDiscrete`."""
    scale = ScaleIntensityRange(a_min=0, a_max=255, b_min=0, b_max=1, clip=True)
    argmax = AsDiscrete(argmax=True)
    unet = UNet(2, 1, 7, channels=(8, 16, 32), strides=(2, 2), num_res_units=1)
    segresnet = SegResNet(2, init_filters=8, in_channels=3, out_channels=7, dropout_prob=0)
    densenet = DenseNet121(2, 3, 7)
    for title, model, mode, head in (
        ("unet", unet, "L", None),
        ("segresnet", segresnet, "RGB", segresnet.conv_final[-1].conv),
        ("densenet121", densenet, "RGB", densenet.class_layers.out),
    ):
        steps = [EnsureChannelFirst(channel_dim="no_channel" if mode == "L" else -1), scale]
        prepare = Compose(steps)
        settle(model, stacked(SIZE_WH, mode), head)

        def answer(file: Path, model: Any = model, prepare: Any = prepare) -> Answer:
            with torch.no_grad():
                scores = model(prepare(np.array(Image.open(file), np.float32))[None])[0]
            return (
                scored(scores.softmax(0)) if scores.ndim == 1 else mapped(file, argmax(scores)[0])
            )

        def export_to(path: Path, model: Any = model, mode: str = mode) -> None:
            inputs = [stacked(SIZE_WH, mode)[:1]]
            convert_to_onnx(
                model, inputs, filename=str(path), use_trace=True, opset_version=17, dynamo=False
            )

        is_map = title != "densenet121"
        toml = f'family = "{"unet" if is_map else "plain-classifier"}"\n{NAMED}'
        write(
            root / f"monai-{title}",
            version("monai"),
            toml,
            answer,
            export_to,
            size_wh=SIZE_WH,
            mode=mode,
        )


def write_torchgeo(root: Path) -> None:
    """TorchGeo: tasks for satellite images of 13 and of 4 bands."""
    rng = np.random.default_rng(4)
    for title, bands, task, dtype in (
        (
            "sentinel2",
            13,
            ClassificationTask(model="resnet18", in_channels=13, num_classes=7),
            np.uint16,
        ),
        (
            "naip",
            4,
            SemanticSegmentationTask(
                model="unet", backbone="resnet18", in_channels=4, num_classes=7
            ),
            np.uint8,
        ),
    ):
        folder = root / f"torchgeo-{title}"
        folder.mkdir(parents=True)
        top, height, width = (10_000, 64, 64) if bands == 13 else (255, 96, 128)
        images = {}
        files = {}
        for name in SIZES:
            coarse = rng.integers(0, top, (bands, 6, 8)).astype(np.float32)
            cube = np.stack(
                [np.asarray(Image.fromarray(band).resize((width, height))) for band in coarse]
            )
            cube = cube.astype(dtype)
            pages = [Image.fromarray(band) for band in cube]
            file = folder / f"{name}.tif"
            pages[0].save(file, save_all=True, append_images=pages[1:])
            files[file] = torch.from_numpy(cube.astype(np.float32) / top)
        model = task.model
        head = model.fc if bands == 13 else model.segmentation_head[0]
        settle(model, torch.stack([*files.values()]), head)
        task.eval()
        for file, pixels in files.items():
            with torch.no_grad():
                answer = task.predict_step({"image": pixels[None]}, 0)
            answer = answer["probabilities"] if isinstance(answer, dict) else answer
            if bands == 13:
                images[file.name] = scored(answer[0])
            else:
                images[file.name] = mapped(
                    file, answer[0].argmax(0) if answer.ndim == 4 else answer[0]
                )
        export(model, torch.stack([*files.values()])[:2], folder / "model.onnx", dynamo=bands == 4)
        toml = f'family = "{"plain-classifier" if bands == 13 else "unet"}"\n{NAMED}'
        toml += "[input]\nbit_depth = 16\nscale = 0.0001\n" if bands == 13 else ""
        write_expected(folder, version("torchgeo"), toml, images)


def write_doctr(root: Path) -> None:
    """DocTR: a classifier of crops and a detector of text, by its `export_model_to_onnx`."""
    model = classification.mobilenet_v3_small(pretrained=False, num_classes=7)
    mean, std = model.cfg["mean"], model.cfg["std"]
    prepare = PreProcessor((32, 32), batch_size=1, mean=mean, std=std)
    torch.manual_seed(2)
    noise = torch.nn.functional.interpolate(torch.rand(40, 3, 4, 4), (32, 32), mode="bicubic")
    settle(
        model, normalised(torch.cat([stacked((32, 32)), noise]), mean, std), model.classifier[-1]
    )

    @torch.no_grad()
    def answer(file: Path) -> Answer:
        (pixels,) = prepare([np.array(Image.open(file))])
        return scored(model(pixels).softmax(-1)[0])

    values = f"mean = {list(mean)}\nstd = {list(std)}\n"
    toml = f'family = "plain-classifier"\n{NAMED}[input]\n{values}'
    write(
        root / "doctr-crops",
        version("python-doctr"),
        toml,
        answer,
        lambda path: export_model_to_onnx(
            model, str(path.with_suffix("")), torch.rand(1, 3, 32, 32)
        ),
        size_wh=(32, 32),
    )
    for title, network in (
        ("db", detection.db_mobilenet_v3_large),
        ("linknet", detection.linknet_resnet18),
    ):
        detector = network(pretrained=False, pretrained_backbone=False, exportable=False)
        mean, std = detector.cfg["mean"], detector.cfg["std"]
        head = {
            "db": lambda net: net.prob_head[-1],
            "linknet": lambda net: net.classifier[-1],
        }[title](detector)
        settle(detector, normalised(stacked((128, 128)), mean, std), head)

        @torch.no_grad()
        def answer_map(
            file: Path, detector: Any = detector, mean: Any = mean, std: Any = std
        ) -> Answer:
            pixels = normalised(opened(file), mean, std)
            chances = detector(pixels, return_model_output=True)["out_map"][0, 0].numpy()
            return mapped(file, chances > 0.5)

        def export_to(path: Path, detector: Any = detector) -> None:
            detector.exportable = True
            export_model_to_onnx(detector, str(path.with_suffix("")), torch.rand(1, 3, 128, 128))

        toml = f'family = "binary-segmentation"\nlabels = ["text"]\n[input]\nmean = {list(mean)}\nstd = {list(std)}\n'
        write(
            root / f"doctr-{title}",
            version("python-doctr"),
            toml,
            answer_map,
            export_to,
            size_wh=(128, 128),
        )


def main(root: Path) -> None:
    for write_models in (write_smp, write_monai, write_torchgeo, write_doctr):
        write_models(root)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
