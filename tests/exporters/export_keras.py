"""Exports random models of Keras and TensorFlow, and writes what Keras answers beside them.

Run by `test_keras.py`, with a Python that has keras, tensorflow and tf2onnx: it writes `<model>/` for
each model to the folder given, with images, `answer.toml` and `expected.json`.
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.update({"TF_CPP_MIN_LOG_LEVEL": "3", "KERAS_BACKEND": "tensorflow"})

import keras
import numpy as np
import tensorflow as tf
import tf2onnx
from keras import applications
from pictures import SIZES, picture, save_map, write_expected

LABELS = ["plate", "zebra", "apple", "key", "boat", "nut", "eel"]
NAMED = f"labels = {LABELS}\n".replace("'", '"')
KERAS = f"keras {keras.__version__}"
TF2ONNX = f"tf2onnx {tf2onnx.__version__}"
SIDE = 96
Predict = Callable[[Path], np.ndarray]


def spread(model: keras.Model, pixels: np.ndarray, outputs: int = 7) -> None:
    """Make answers depend on the image: layers pass it on, and the last one's scores spread over the classes."""
    rng = np.random.default_rng(5)
    layers = [layer for layer in model._flatten_layers() if layer.weights]
    for layer in layers:
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.gamma.assign(rng.uniform(0.8, 1.2, layer.gamma.shape))
            layer.momentum = 0.0  # the next run sets mean and variance
    model(pixels, training=True)
    heads = [layer for layer in layers if getattr(layer, "activation", None) is not None]
    head = next(
        layer
        for layer in reversed(heads)
        if isinstance(layer, keras.layers.Dense | keras.layers.Conv2D)
        and layer.kernel.shape[-1] == outputs
    )
    head.kernel.assign(
        rng.normal(size=head.kernel.shape) * 2 / np.prod(head.kernel.shape[:-1]) ** 0.5
    )


def write(
    folder: Path,
    model: keras.Model,
    predict: Predict,
    toml: str,
    *,
    exporter: str = KERAS,
    size_wh: tuple[int, int] | None = None,
    export: Callable[[keras.Model, Path], Any] | None = None,
) -> None:
    """Export a model, and write its answer to each picture: scores (7,), or the class of each pixel (H, W)."""
    folder.mkdir()
    images = {}
    for name in SIZES:
        file = folder / f"{name}.png"
        picture(name, size_wh).save(file)
        answer = predict(file)
        images[file.name] = (
            save_map(answer, folder / f"{name}-classes.png")
            if answer.ndim == 2
            else {"scores": dict(zip(LABELS, answer.tolist(), strict=True))}
        )
    if export is None:
        model.export(folder / "model.onnx", format="onnx", verbose=False)
    else:
        export(model, folder / "model.onnx")
    write_expected(folder, exporter, toml, images)


def load(file: Path, side: tuple[int, int] | None, interpolation: str = "bilinear") -> np.ndarray:
    """Read an image as the documents of Keras do, float32 (1, H, W, 3) from 0 to 255."""
    image = keras.utils.load_img(file, target_size=side, interpolation=interpolation)
    return keras.utils.img_to_array(image)[None]


def samples(side: int = SIDE) -> np.ndarray:
    return np.stack([np.float32(picture(name, (side, side))) for name in SIZES])


def write_applications(root: Path) -> None:
    """Write classifiers of `keras.applications`, each with the input that its `preprocess_input` makes."""
    plain = f'family = "plain-classifier"\n{NAMED}[input]\n'
    near = 'interpolation = "nearest"\n'
    signed = "mean = [0.5, 0.5, 0.5]\nstd = [0.5, 0.5, 0.5]\n"
    caffe = 'color = "bgr"\nscale = 1.0\nmean = [103.939, 116.779, 123.68]\n'
    imagenet = "mean = [0.485, 0.456, 0.406]\nstd = [0.229, 0.224, 0.225]\n"
    options = {"weights": None, "classes": 7, "input_shape": (SIDE, SIDE, 3)}
    networks = (
        ("mobilenet-v2", applications.mobilenet_v2, "MobileNetV2", {"alpha": 0.35}, signed),
        ("mobilenet-v3", applications.mobilenet_v3, "MobileNetV3Small", {}, "scale = 1.0\n"),
        ("resnet50", applications.resnet50, "ResNet50", {}, caffe + near),
        ("densenet121", applications.densenet, "DenseNet121", {}, imagenet),
        ("mobilenet-v1", applications.mobilenet, "MobileNet", {"alpha": 0.25}, signed + near),
    )
    for name, module, network, further, values in networks:
        model = getattr(applications, network)(**options, **further)
        spread(model, module.preprocess_input(samples()))
        interpolation = "nearest" if near in values else "bilinear"

        def predict(file, model=model, module=module, interpolation=interpolation):
            pixels = load(file, (SIDE, SIDE), interpolation)
            return model.predict(module.preprocess_input(pixels), verbose=0)[0]

        write(root / name, model, predict, plain + values)


def unet(classes: int, activation: str, channels: int = 3) -> keras.Model:
    """Make a small U-Net, channels last, as tutorials of Keras write it."""
    layers = keras.layers
    pixels = keras.Input((SIDE, 128, channels), name="image")
    first = layers.Conv2D(8, 3, padding="same", activation="relu")(pixels)
    second = layers.Conv2D(16, 3, strides=2, padding="same")(first)
    second = layers.Activation("relu")(layers.BatchNormalization()(second))
    enlarged = layers.Conv2DTranspose(8, 3, strides=2, padding="same", activation="relu")(second)
    joined = layers.Concatenate()([first, enlarged])
    return keras.Model(
        pixels, layers.Conv2D(classes, 3, padding="same", activation=activation)(joined)
    )


def write_unets(root: Path) -> None:
    size_wh = (128, SIDE)
    pixels = np.stack([np.float32(picture(name, size_wh)) / 255 for name in SIZES])
    for name, classes, activation, family in (
        ("unet", 7, "softmax", "unet"),
        ("unet-logits", 7, "linear", "unet"),
        ("unet-binary", 1, "sigmoid", "binary-unet"),
    ):
        model = unet(classes, activation)
        spread(model, pixels, classes)
        if classes == 1:
            logits = keras.Model(model.input, model.layers[-2].output)(pixels)
            model.layers[-1].bias.assign([-float(np.median(model.layers[-1](logits)))])
            odds = model(pixels).numpy()
            middle = float(np.log(np.median(odds) / (1 - np.median(odds))))
            model.layers[-1].bias.assign(model.layers[-1].bias - middle)

        def predict(file, model=model, classes=classes):
            scores = model.predict(load(file, None) / 255, verbose=0)[0]
            return scores.argmax(-1) if classes > 1 else scores[..., 0] > 0.5

        labels = NAMED if classes > 1 else 'labels = ["thing"]\n'
        write(root / name, model, predict, f'family = "{family}"\n{labels}', size_wh=size_wh)


def write_saved(root: Path) -> None:
    """Write what only tf2onnx converts: a function on bytes, a model with NCHW in and out, a file of TensorFlow Lite."""
    plain = f'family = "plain-classifier"\n{NAMED}'
    size = (SIDE, SIDE, 3)
    model = applications.MobileNetV2(weights=None, classes=7, input_shape=size, alpha=0.35)
    spread(model, applications.mobilenet_v2.preprocess_input(samples()))

    def predict_bytes(file):
        pixels = load(file, (SIDE, SIDE))
        return model.predict(applications.mobilenet_v2.preprocess_input(pixels), verbose=0)[0]

    def as_bytes(model, path):
        @tf.function
        def serve(image):
            return model(tf.cast(image, tf.float32) / 127.5 - 1)

        signature = [tf.TensorSpec([None, SIDE, SIDE, 3], tf.uint8, name="image")]
        tf2onnx.convert.from_function(serve, signature, opset=17, output_path=str(path))

    write(root / "bytes", model, predict_bytes, plain, exporter=TF2ONNX, export=as_bytes)

    def as_nchw(model, path):
        @tf.function
        def serve(image):
            return {"probabilities": model(image)}

        signature = [tf.TensorSpec([1, SIDE, SIDE, 3], tf.float32, name="image")]
        tf2onnx.convert.from_function(
            serve, signature, opset=17, inputs_as_nchw=["image"], output_path=str(path)
        )

    signed = "[input]\nmean = [0.5, 0.5, 0.5]\nstd = [0.5, 0.5, 0.5]\n"
    write(root / "nchw", model, predict_bytes, plain + signed, exporter=TF2ONNX, export=as_nchw)

    size_wh = (128, SIDE)
    segmenter = unet(7, "linear")
    spread(segmenter, np.stack([np.float32(picture(name, size_wh)) / 255 for name in SIZES]))

    def predict_map(file):
        return segmenter.predict(load(file, None) / 255, verbose=0)[0].argmax(-1)

    def nchw_in(model, path):
        serve = tf.function(model)
        signature = [tf.TensorSpec([1, SIDE, 128, 3], tf.float32, name="image")]
        tf2onnx.convert.from_function(
            serve, signature, opset=17, inputs_as_nchw=["image"], output_path=str(path)
        )

    toml = f'family = "unet"\n{NAMED}'
    write(
        root / "unet-nchw",
        segmenter,
        predict_map,
        toml,
        exporter=TF2ONNX,
        export=nchw_in,
        size_wh=size_wh,
    )

    def as_map(model, path):
        serve = tf.function(lambda image: tf.argmax(model(image / 255), -1)[..., None])
        signature = [tf.TensorSpec([None, None, None, 3], tf.float32, name="image")]
        tf2onnx.convert.from_function(serve, signature, opset=17, output_path=str(path))

    lines = f'family = "class-map"\n{NAMED}[input]\nresize = "none"\n'
    lines += "scale = 1.0\nmean = [0, 0, 0]\nstd = [1, 1, 1]\n"
    write(
        root / "argmax",
        segmenter,
        predict_map,
        lines,
        exporter=TF2ONNX,
        export=as_map,
        size_wh=size_wh,
    )


def write_tflite(root: Path) -> None:
    """Write a classifier of bytes that TensorFlow Lite quantised; its interpreter is the reference."""
    model = applications.MobileNetV2(
        weights=None, classes=7, input_shape=(SIDE, SIDE, 3), alpha=0.35
    )
    pixels = applications.mobilenet_v2.preprocess_input(samples())
    spread(model, pixels)
    converter = tf.lite.TFLiteConverter.from_keras_model(model)
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    converter.representative_dataset = lambda: ([row[None]] for row in pixels)
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
    converter.inference_input_type = tf.uint8
    content = converter.convert()
    interpreter = tf.lite.Interpreter(model_content=content)
    interpreter.allocate_tensors()
    (taken,), (answered,) = interpreter.get_input_details(), interpreter.get_output_details()

    def predict(file):
        interpreter.set_tensor(taken["index"], load(file, (SIDE, SIDE)).astype(np.uint8))
        interpreter.invoke()
        return interpreter.get_tensor(answered["index"])[0].astype(np.float64)

    def export(model, path):
        file = path.with_suffix(".tflite")
        file.write_bytes(content)
        tf2onnx.convert.from_tflite(str(file), opset=17, output_path=str(path))
        file.unlink()

    toml = f'family = "plain-classifier"\n{NAMED}'
    write(root / "tflite", model, predict, toml, exporter=TF2ONNX + " from TFLite", export=export)


def main(root: Path) -> None:
    keras.utils.set_random_seed(1)
    for write_models in (write_applications, write_unets, write_saved, write_tflite):
        write_models(root)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
