"""Exports tiny random vision models, and writes what their own libraries answer beside them.

Run by `test_vision.py`, with a Python that has torch, torchvision, timm and transformers: it writes
`<model>/` for each model to the folder given, with images and `expected.json`.
"""

import json
import sys
from pathlib import Path

import numpy as np
import timm
import torch
import transformers as hf
from pictures import SIZES, picture
from PIL import Image
from timm.data import create_transform, resolve_model_data_config
from timm.models import save_for_hf

LABELS = dict(enumerate(["plate", "Zebra", "apple", "key", "Boat", "nut", "eel"]))
NAMES = {"id2label": LABELS, "label2id": {name: index for index, name in LABELS.items()}}
RESNET = {"embedding_size": 16, "hidden_sizes": [16, 24, 32, 48], "depths": [1, 1, 1, 1]}
DETR = {
    "use_timm_backbone": False,
    "use_pretrained_backbone": False,
    "backbone": None,
    "backbone_config": hf.ResNetConfig(**RESNET, out_features=["stage4"]),
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "num_queries": 30,
}
RTDETR = {
    "encoder_hidden_dim": 32,
    "encoder_ffn_dim": 64,
    "encoder_attention_heads": 4,
    "d_model": 32,
    "num_queries": 40,
    "decoder_layers": 2,
    "decoder_attention_heads": 4,
    "decoder_ffn_dim": 64,
    "decoder_in_channels": [32, 32, 32],
    "hidden_expansion": 0.5,
}
HGNET = {
    "embedding_size": 8,
    "hidden_sizes": [16, 24, 32, 48],
    "depths": [1, 1, 1, 1],
    "stem_channels": [3, 8, 8],
    "stage_in_channels": [8, 16, 24, 32],
    "stage_mid_channels": [8, 8, 8, 8],
    "stage_out_channels": [16, 24, 32, 48],
    "stage_num_blocks": [1, 1, 1, 1],
    "stage_numb_of_layers": [1, 1, 1, 1],
    "stage_downsample": [False, True, True, True],
    "stage_light_block": [False, False, True, True],
    "stage_kernel_size": [3, 3, 3, 3],
}


class Outputs(torch.nn.Module):
    """A model of transformers that answers the outputs an exporter keeps."""

    def __init__(self, model: torch.nn.Module, names: list[str]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, pixels: torch.Tensor) -> tuple[torch.Tensor, ...]:
        answered = self.model(pixels)
        return tuple(answered[name] for name in self.names)


def spread(model: torch.nn.Module) -> torch.nn.Module:
    """Make outputs depend on the image: with usual random weights they hardly do."""
    torch.manual_seed(5)
    for name, weight in model.named_parameters():
        if name.endswith(("tokens", "position_embeddings")):
            torch.nn.init.normal_(weight, std=0.5)
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.weight.uniform_(0.8, 1.2)
            module.running_mean.normal_(std=0.1)
            module.running_var.uniform_(0.5, 1.5)
        elif isinstance(module, torch.nn.Embedding) and ".queries_" in name:
            torch.nn.init.normal_(module.weight, std=3)
        elif isinstance(module, torch.nn.Linear | torch.nn.Conv2d):
            fan_in = module.weight[0].numel()
            gain = 1.5
            if name.endswith(("encoder_attn.q_proj", "encoder_attn.k_proj")) or ".ca_q" in name:
                gain = 4  # attention that picks
            elif "mobilenet" in name:
                gain = (
                    1.2  # of so many layers, float32 answers would differ from runtime to runtime
                )
            torch.nn.init.normal_(module.weight, std=gain / fan_in**0.5)
            if module.bias is not None:
                torch.nn.init.normal_(module.bias, std=0.2)
            # RT-DETR's anchors at the edges are all of one score: it must not be the best
            if name.endswith("enc_output.0"):
                module.bias.zero_()
            elif name.endswith("enc_score_head"):
                module.bias.fill_(-5)
    return model.eval()


def spread_queries(model: torch.nn.Module, images: list[torch.Tensor]) -> None:
    """Make the heads' answers differ from query to query, none too sure of itself."""
    for name, head in model.named_modules():
        if not isinstance(head, torch.nn.Linear) or name.endswith("enc_score_head"):
            continue
        sizes = 4, len(LABELS), len(LABELS) + 1
        if head.out_features not in sizes and "mask_embedder.2" not in name:
            continue
        seen: list[torch.Tensor] = []
        hook = head.register_forward_hook(lambda *arguments, seen=seen: seen.append(arguments[2]))
        for pixels in images:
            model(pixels)
        hook.remove()
        if seen:
            rows = torch.cat([output.flatten(0, -2) for output in seen])
            # a class that wins a pixel takes queries that are surer of theirs than of their masks
            factors = {"class_predictor": 0.3, "mask_embedder.2": 8}
            less = next((factors[suffix] for suffix in factors if name.endswith(suffix)), 2)
            mean, std = rows.mean(0), less * rows.std(0)
            head.weight /= std[:, None]
            head.bias.copy_((head.bias - mean) / std)


def export(
    model: torch.nn.Module, pixels: torch.Tensor, folder: Path, names: list[str], *, open_size: bool
) -> None:
    axes = {0: "batch_size"}
    image_axes = {**axes, 2: "height", 3: "width"} if open_size else axes
    torch.onnx.export(
        model,
        (pixels,),
        folder / "model.onnx",
        dynamo=False,
        opset_version=17,
        input_names=["pixel_values"],
        output_names=names,
        dynamic_axes={"pixel_values": image_axes, **dict.fromkeys(names, axes)},
    )


def classified(model, processor, image, tensor, folder):
    logits = model(**tensor).logits[0]
    several = model.config.problem_type == "multi_label_classification"
    scores = logits.sigmoid() if several else logits.softmax(-1)
    return {"scores": dict(zip(LABELS.values(), scores.tolist(), strict=True))}


def detected(model, processor, image, tensor, folder):
    outputs = model(**tensor)
    sizes = [(image.height, image.width)]
    (detections,) = processor.post_process_object_detection(
        outputs, threshold=0, target_sizes=sizes
    )
    scores = detections["scores"].sort(descending=True).values[3:25]
    widest = (scores[:-1] - scores[1:]).argmax().item()
    threshold = (scores[widest] + scores[widest + 1]).item() / 2
    (detections,) = processor.post_process_object_detection(
        outputs, threshold=threshold, target_sizes=sizes
    )
    labels = [LABELS[index] for index in detections["labels"].tolist()]
    rows = zip(labels, detections["scores"].tolist(), detections["boxes"].tolist(), strict=True)
    return {"threshold": threshold, "boxes": list(rows)}


def segmented(model, processor, image, tensor, folder):
    (label_map,) = processor.post_process_semantic_segmentation(
        model(**tensor), target_sizes=[(image.height, image.width)]
    )
    name = Path(image.filename).stem + "-classes.png"
    Image.fromarray(label_map.numpy().astype(np.uint8)).save(folder / name)
    return {"classes": name}


def instances(model, processor, image, tensor, folder):
    """Return label, score and mask of each; masks are enlarged before they are cut, not after."""
    outputs = model(**tensor)
    size = [(image.height, image.width)]
    read = processor.post_process_instance_segmentation
    (segmentation,) = read(outputs, threshold=0, target_sizes=size, return_binary_maps=True)
    best = sorted((segment["score"] for segment in segmentation["segments_info"]), reverse=True)
    threshold = (best[7] + best[8]) / 2
    chances = outputs.class_queries_logits[0].softmax(-1)[:, :-1].flatten()
    queries = chances.topk(len(outputs.class_queries_logits[0]), sorted=False).indices
    queries = queries // len(LABELS)
    enlarge = {"mode": "bilinear", "align_corners": False}
    masks = outputs.masks_queries_logits
    if "Mask2Former" in type(model).__name__:
        masks = torch.nn.functional.interpolate(masks, (384, 384), **enlarge)
    masks = torch.nn.functional.interpolate(masks, size[0], **enlarge)[0] > 0
    non_empty = [index for index, query in enumerate(queries.tolist()) if masks[query].any()]
    assert len(non_empty) == len(segmentation["segments_info"]), (
        "a mask that nearest pixels alone have"
    )
    rows = []
    for number, (index, segment) in enumerate(
        zip(non_empty, segmentation["segments_info"], strict=True)
    ):
        if segment["score"] <= threshold:
            continue
        name = f"{Path(image.filename).stem}-{number}.png"
        mask = masks[queries[index]]
        Image.fromarray(mask.numpy().astype(np.uint8)).save(folder / name)
        theirs = segmentation["segmentation"][number] > 0
        shared = ((mask & theirs).sum() / (mask | theirs).sum()).item()
        rows.append([LABELS[segment["label_id"]], segment["score"], name, shared])
    return {"threshold": threshold, "instances": rows}


def vit(**more):
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = hf.ViTConfig(
        **sizes, intermediate_size=64, image_size=48, patch_size=8, **NAMES, **more
    )
    return hf.ViTForImageClassification(config)


def transformers_models():
    """Yield name, model, processor and the function that reads the outputs."""
    square = {"height": 48, "width": 48}
    yield "vit", vit(), hf.ViTImageProcessor(size=square), classified
    several = vit(problem_type="multi_label_classification")
    yield "vit-bicubic", several, hf.ViTImageProcessor(size=square, resample=3), classified
    resnet = hf.ResNetForImageClassification(hf.ResNetConfig(**RESNET, **NAMES))
    small = hf.ConvNextImageProcessor(size={"shortest_edge": 72}, crop_pct=0.875)
    yield "resnet", resnet, small, classified
    sizes = {"hidden_sizes": [8, 12, 16, 24], "depths": [1, 1, 1, 1]}
    convnext = hf.ConvNextForImageClassification(hf.ConvNextConfig(**sizes, **NAMES))
    yield "convnext", convnext, hf.ConvNextImageProcessor(size={"shortest_edge": 384}), classified
    config = hf.MobileNetV2Config(depth_multiplier=0.35, image_size=56, **NAMES)
    cropped = hf.MobileNetV2ImageProcessor(
        size={"shortest_edge": 65}, crop_size={"height": 56, "width": 56}
    )
    yield "mobilenet", hf.MobileNetV2ForImageClassification(config), cropped, classified

    edges = {"shortest_edge": 160, "longest_edge": 267}
    detr = hf.DetrForObjectDetection(hf.DetrConfig(**DETR, **NAMES))
    yield "detr", detr, hf.DetrImageProcessor(size=edges), detected
    conditional = hf.ConditionalDetrForObjectDetection(hf.ConditionalDetrConfig(**DETR, **NAMES))
    yield "conditional-detr", conditional, hf.ConditionalDetrImageProcessor(size=edges), detected
    config = hf.YolosConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        image_size=[96, 128],
        num_detection_tokens=30,
        use_mid_position_embeddings=False,
        **NAMES,
    )
    yield "yolos", hf.YolosForObjectDetection(config), hf.YolosImageProcessor(size=edges), detected
    sides = {"height": 96, "width": 128}
    backbone = hf.RTDetrResNetConfig(
        **RESNET, layer_type="basic", out_features=["stage2", "stage3", "stage4"]
    )
    config = hf.RTDetrConfig(
        backbone_config=backbone, encoder_in_channels=[24, 32, 48], **RTDETR, **NAMES
    )
    rtdetr = hf.RTDetrForObjectDetection(config)
    yield "rt-detr", rtdetr, hf.RTDetrImageProcessor(size=sides), detected
    config = hf.RTDetrV2Config(
        backbone_config=backbone, encoder_in_channels=[24, 32, 48], **RTDETR, **NAMES
    )
    second = hf.RTDetrV2ForObjectDetection(config)
    yield "rt-detr-v2", second, hf.RTDetrImageProcessor(size=sides), detected
    backbone = hf.HGNetV2Config(**HGNET, out_features=["stage2", "stage3", "stage4"])
    config = hf.DFineConfig(
        backbone_config=backbone, encoder_in_channels=[24, 32, 48], **RTDETR, **NAMES
    )
    dfine = hf.DFineForObjectDetection(config)
    yield "d-fine", dfine, hf.RTDetrImageProcessor(size=sides), detected
    stages = hf.ResNetConfig(**RESNET, out_features=["stage2", "stage3", "stage4"])
    config = hf.DeformableDetrConfig(**{**DETR, "backbone_config": stages}, **NAMES)
    deformable = hf.DeformableDetrForObjectDetection(config)
    yield "deformable-detr", deformable, hf.DeformableDetrImageProcessor(size=sides), detected

    config = hf.SegformerConfig(
        hidden_sizes=[8, 16, 24, 32],
        depths=[1, 1, 1, 1],
        num_attention_heads=[1, 2, 2, 4],
        decoder_hidden_size=32,
        **NAMES,
    )
    segformer = hf.SegformerForSemanticSegmentation(config)
    yield "segformer", segformer, hf.SegformerImageProcessor(size=sides), segmented
    for suffix, answer in (("", segmented), ("-instance", instances)):
        yield "maskformer" + suffix, maskformer(), hf.MaskFormerImageProcessor(size=edges), answer
        second = hf.Mask2FormerImageProcessor(size=sides)
        yield "mask2former" + suffix, mask2former(), second, answer


def maskformer():
    stages = [f"stage{number}" for number in (1, 2, 3, 4)]
    config = hf.MaskFormerConfig(
        backbone_config=hf.ResNetConfig(**RESNET, out_features=stages),
        decoder_config=hf.DetrConfig(**DETR),
        fpn_feature_size=32,
        mask_feature_size=32,
        **NAMES,
    )
    return hf.MaskFormerForInstanceSegmentation(config)


def mask2former():
    backbone = hf.SwinConfig(
        embed_dim=16,
        depths=[1, 1, 1, 1],
        num_heads=[1, 2, 2, 4],
        window_size=4,
        out_features=[f"stage{number}" for number in (1, 2, 3, 4)],
    )
    config = hf.Mask2FormerConfig(
        backbone_config=backbone,
        feature_size=32,
        mask_feature_size=32,
        hidden_dim=32,
        encoder_layers=1,
        encoder_feedforward_dim=64,
        decoder_layers=3,
        dim_feedforward=64,
        num_attention_heads=4,
        num_queries=20,
        **NAMES,
    )
    return hf.Mask2FormerForUniversalSegmentation(config)


def write_transformers(folder: Path, model, processor, answer) -> None:
    model = spread(model)
    samples = [processor(picture(name), return_tensors="pt").pixel_values for name in SIZES]
    if answer in {detected, instances} or "former" in folder.name:
        spread_queries(model, samples)
    folder.mkdir()
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(folder)
    processor.save_pretrained(folder)
    cases = {}
    for name in SIZES:
        picture(name).save(folder / f"{name}.png")
        image = Image.open(folder / f"{name}.png")
        tensor = processor(image, return_tensors="pt")
        cases[f"{name}.png"] = answer(model, processor, image, tensor, folder)
    (folder / "expected.json").write_text(json.dumps(cases))
    outputs = ["logits", "pred_boxes"] if answer is detected else ["logits"]
    if "former-instance" in folder.name or folder.name in {"maskformer", "mask2former"}:
        # the files do not tell whether classes or instances are asked for
        (folder / "model.toml").write_text(f'family = "{folder.name}"\n')
        outputs = ["class_queries_logits", "masks_queries_logits"]
    by_edges = "longest_edge" in processor.size
    export(Outputs(model, outputs).eval(), samples[0], folder, outputs, open_size=by_edges)


def write_timm(folder: Path, architecture: str, **pretrained) -> None:
    model = timm.create_model(
        architecture, num_classes=len(LABELS), pretrained_cfg_overlay=pretrained
    )
    model = spread(model)
    save_for_hf(model, folder, model_args={"num_classes": len(LABELS)})
    for path in folder.glob("*model.*"):
        path.unlink()  # weights of torch
    transform = create_transform(**resolve_model_data_config(model), is_training=False)
    cases = {}
    for name in SIZES:
        picture(name).save(folder / f"{name}.png")
        tensor = transform(Image.open(folder / f"{name}.png"))[None]
        scores = model(tensor)[0].softmax(-1).tolist()
        labels = [f"class_{index}" for index in range(len(scores))]
        cases[f"{name}.png"] = {"scores": dict(zip(labels, scores, strict=True))}
    (folder / "expected.json").write_text(json.dumps(cases))
    export(model, tensor, folder, ["logits"], open_size=False)


@torch.no_grad()
def main(root: Path) -> None:
    torch.manual_seed(1)
    for name, *model_parts in transformers_models():
        write_transformers(root / name, *model_parts)
    write_timm(root / "timm-resnet", "test_resnet", crop_mode="center")
    write_timm(root / "timm-vit", "test_vit", interpolation="bilinear", crop_pct=1.0)
    write_timm(root / "timm-squash", "test_efficientnet", crop_mode="squash", crop_pct=0.9)
    write_timm(root / "timm-border", "test_resnet", crop_mode="border")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
