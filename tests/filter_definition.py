"""Filters by their definition: a plain predicate on a record, without SQL and without our parsers."""

import math
from typing import Any

from quadriga.store.records.records import InferenceRecord, timestamp_text

ABSENT = object()
EARTH_RADIUS_M = 6_371_008.8
METRES = {"m": 1, "km": 1000, "mi": 1609.344}


def holds(where: dict[str, Any], record: InferenceRecord) -> bool:
    return all(part_holds(key, value, record) for key, value in where.items())


def part_holds(key: str, value: Any, record: InferenceRecord) -> bool:
    if key in {"and", "or"}:
        return (all if key == "and" else any)(holds(part, record) for part in value)
    if key == "not":
        return not holds(value, record)
    if key in {"label", "box", "best"}:
        return (best_holds if key == "best" else prediction_holds)(record, value)
    if key == "geo":
        return place_holds(record.metadata, value)
    if key == "model.sha256":
        return hash_holds(record.model.sha256, value)
    return field_holds(key, value, record)


def field_holds(key: str, value: Any, record: InferenceRecord) -> bool:
    name = record.model.name.lower()
    tasks = {record.task.lower(), record.task.lower().removeprefix("object_")}
    names = {
        "model": {name, f"m-{name}", f"{name}:{record.model.version}"},
        "version": {record.model.version},
        "task": tasks,
    }
    if key in names:
        return name_holds(names[key], value)
    if key == "answer":
        return texts_hold(
            [prediction["answer"] for prediction in listed(record) if "answer" in prediction], value
        )
    if key in {"ground_truth", "feedback"}:
        return value == {"exists": False}
    if key in {"ground_truth.label", "ground_truth.review"}:
        return texts_hold([], value)
    for root, tree in (("meta.", record.metadata), ("std.", record.standard)):
        if key.startswith(root):
            return all_hold(lookup(tree, key[len(root) :]), value)
    columns: dict[str, Any] = {
        "id": str(record.seq),  # of equal length, so their text is ordered as they are
        "ts": timestamp_text((record.seq >> 22) + 1_735_689_600_000),
        "request_id": record.request_id,
        "action": record.action,
        "latency_ms": record.latency_ms,
        "status": record.status,
        "predictions": len(listed(record)) if isinstance(record.predictions, list) else ABSENT,
        "input.hash": ABSENT if record.input.hash is None else record.input.hash,
    }
    return all_hold(columns[key], value)


def lookup(node: dict[str, Any], path: str) -> Any:
    """Find a dotted path in nested objects whose keys may have dots themselves."""
    for key, value in node.items():
        if key == path and value is not None:
            return value
        if path.startswith(key + ".") and isinstance(value, dict):
            inner = lookup(value, path[len(key) + 1 :])
            if inner is not ABSENT:
                return inner
    return ABSENT


def kind(value: Any) -> str:
    if isinstance(value, bool):
        return "bool"
    return {int: "number", float: "number", str: "text"}.get(type(value), "other")


def compares(value: Any, operator: str, operand: Any) -> bool:
    if operator == "ne":
        return not compares(value, "eq", operand)
    if operator == "exists":
        return (value is not ABSENT) == operand
    if operator == "in":
        return any(compares(value, "eq", item) for item in operand)
    if kind(value) == "other" or kind(value) != kind(operand):
        return False
    if operator == "contains":
        return operand in value
    sign = (value > operand) - (value < operand)
    return {"eq": sign == 0, "gt": sign > 0, "ge": sign >= 0, "lt": sign < 0, "le": sign <= 0}[
        operator
    ]


def operators(condition: Any) -> dict[str, Any]:
    return condition if isinstance(condition, dict) else {"eq": condition}


def all_hold(value: Any, condition: Any) -> bool:
    return all(
        compares(value, *operator_and_operand)
        for operator_and_operand in operators(condition).items()
    )


def texts_hold(texts: list[str], condition: Any) -> bool:
    """Some of the texts, each operator by itself."""
    held = []
    for operator, operand in operators(condition).items():
        if operator == "exists":
            held.append(bool(texts) == operand)
        elif operator == "ne":
            held.append(operand not in texts)
        else:
            held.append(any(compares(text, operator, operand) for text in texts))
    return all(held)


def best_holds(record: InferenceRecord, condition: Any) -> bool:
    """Some label holds, each operator by itself; of a classification one of those with the highest score."""
    scored = [(p["label"], p.get("score")) for p in listed(record) if isinstance(p.get("label"), str)]  # fmt: skip
    numbers = [score if kind(score) == "number" else -math.inf for _, score in scored]
    is_classification = record.task == "IMAGE_CLASSIFICATION"
    labels = [label for (label, _), score in zip(scored, numbers, strict=True) if not is_classification or score == max(numbers)]  # fmt: skip
    return texts_hold(labels, condition)


def hash_holds(digest: str, condition: Any) -> bool:
    """Check a hash in lower case by each operator: a text stands for it if it is equal, or a beginning of eight digits."""
    held = []
    for operator, operand in operators(condition).items():
        if operator == "exists":
            held.append((digest != "") == operand)
            continue
        texts = operand if operator == "in" else [operand]
        beginnings = {digest, *(digest[:end] for end in range(8, len(digest)))} - {""}
        held.append(any(text.lower() in beginnings for text in texts) == (operator != "ne"))
    return all(held)


def name_holds(names: set[str], condition: Any) -> bool:
    held = []
    for operator, operand in operators(condition).items():
        if operator == "exists":
            held.append(operand)
        elif operator == "in":
            held.append(any(name_.lower() in names for name_ in operand))
        else:
            held.append((operand.lower() in names) == (operator == "eq"))
    return all(held)


def listed(record: InferenceRecord) -> list[dict[str, Any]]:
    return record.predictions if isinstance(record.predictions, list) else []


def prediction_holds(record: InferenceRecord, condition: Any) -> bool:
    lengths = {"name", "score", "area", "cx", "cy", "width", "height", "n"}
    if not isinstance(condition, dict) or not lengths & condition.keys():
        labels = {prediction.get("label") for prediction in listed(record)}
        return all(
            {"eq": operand in labels, "ne": operand not in labels}[operator]
            if operator != "in"
            else bool(labels & set(operand))
            for operator, operand in operators(condition).items()
        )
    rest = dict(condition)
    count = rest.pop("n", {"ge": 1})
    matching = [
        prediction
        for prediction in listed(record)
        if all(
            all_hold(prediction.get("label", ABSENT), bound)
            if name == "name"
            else all_hold(length(prediction, name, record), bound)
            for name, bound in rest.items()
        )
    ]
    return all_hold(len(matching), count)


def length(prediction: dict[str, Any], name: str, record: InferenceRecord) -> Any:
    """Give a property of a prediction, in pixels."""
    if name == "score":
        return prediction.get("score", ABSENT)
    if "xmin" in prediction:
        west, east, north, south = (
            float(prediction[key]) for key in ("xmin", "xmax", "ymin", "ymax")
        )
    elif "contour" in prediction:
        xs = [point["x"] for ring in prediction["contour"] for point in ring]
        ys = [point["y"] for ring in prediction["contour"] for point in ring]
        west, east, north, south = min(xs), max(xs), min(ys), max(ys)
    elif "w" in prediction and record.input.width and record.input.height:
        wide, high = prediction["w"] * record.input.width, prediction["h"] * record.input.height
        cx, cy = prediction["cx"] * record.input.width, prediction["cy"] * record.input.height
        return {"width": wide, "height": high, "area": wide * high, "cx": cx, "cy": cy}[name]
    else:
        return ABSENT
    wide, high = east - west, south - north
    return {
        "width": wide, "height": high, "area": wide * high,
        "cx": (west + east) / 2, "cy": (north + south) / 2,
    }[name]  # fmt: skip


def place_holds(metadata: dict[str, Any], shape: dict[str, Any]) -> bool:
    place = [metadata.get("latitude"), metadata.get("longitude")]
    is_place = all(
        kind(value) == "number" and abs(value) <= bound
        for value, bound in zip(place, (90, 180), strict=True)
    )
    if "exists" in shape:
        return is_place == shape["exists"]
    if not is_place:
        return False
    if "near" in shape:
        number = shape["within"].rstrip("kmi")
        return (
            distance_m(place, shape["near"])
            <= float(number) * METRES[shape["within"][len(number) :]]
        )
    return (in_box if "box" in shape else in_ring)(*place, next(iter(shape.values())))


def distance_m(first: list[float], second: list[float]) -> float:
    """Measure the angle between two places as vectors."""
    a, b = ([math.radians(degrees) for degrees in place] for place in (first, second))
    is_pole = 90 in {abs(first[0]), abs(second[0])}  # where every longitude is the same place
    turn = 0.0 if is_pole else b[1] - a[1]
    across = math.hypot(
        math.cos(b[0]) * math.sin(turn),
        math.cos(a[0]) * math.sin(b[0]) - math.sin(a[0]) * math.cos(b[0]) * math.cos(turn),
    )
    along = math.sin(a[0]) * math.sin(b[0]) + math.cos(a[0]) * math.cos(b[0]) * math.cos(turn)
    return EARTH_RADIUS_M * math.atan2(across, along)


def in_box(latitude: float, longitude: float, box: list[float]) -> bool:
    south, west, north, east = box
    if not south <= latitude <= north:
        return False
    if abs(latitude) == 90:
        return True
    same = {longitude, -longitude} if abs(longitude) == 180 else {longitude}
    return any(west <= one <= east if west <= east else one >= west or one <= east for one in same)


def in_ring(latitude: float, longitude: float, points: list[list[float]]) -> bool:
    """Count the edges between a place and the north pole: odd is inside, unless the pole is."""
    around, crossed = 0.0, 0
    for (y0, x0), (y1, x1) in zip(points, points[1:] + points[:1], strict=True):
        turn = (x1 - x0 + 180) % 360 - 180
        around += turn
        to_place = (longitude - x0) * math.copysign(1, turn) % 360
        if to_place < abs(turn):
            crossed += y0 + (y1 - y0) * to_place / abs(turn) > latitude
    holds_north_pole = round(around / 360) % 2 == 1 and sum(y for y, _ in points) >= 0
    return bool(crossed % 2) != holds_north_pole
