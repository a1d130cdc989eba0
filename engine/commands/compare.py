"""The commands `quadriga compare` and `quadriga replay`: two models, or two versions of one, on the same images."""

import json
from typing import Any

import rich_click as click

from quadriga.engine.commands.options import (
    connect,
    option,
    parse_filter,
    parse_object,
    server_option,
)
from quadriga.engine.commands.output import echo_json, print_table, print_text

_SHOWN_LABELS = 10


@click.command("compare")
@click.argument("a", metavar="MODEL@VERSION")
@click.argument("b", metavar="MODEL@VERSION")
@server_option
@option("--where", "Filter of the inferences, as of `query`.")
@option("--score", "Score from which predictions count.", type=float, default=0.5)
@option("--iou", "Overlap from which two boxes of one label are the same.", type=float, default=0.5)
@option("--limit", "Number of the largest disagreements to list.", type=int, default=10)
@option(
    "--evaluate",
    "Evaluate both against the ground truth of the first, which needs the role monitor.",
    is_flag=True,
)
@option("--json as_json", "Print the answers as JSON.", is_flag=True)
def compare_command(a: str, b: str, **options: Any) -> None:
    """Compare two models or versions on what both answered, one of them maybe by `quadriga replay`."""
    client = connect(options["server"])
    where = parse_filter(options["where"])
    numbers = {name: options[name] for name in ("score", "iou", "limit")}
    answer = client.inferences.compare(a, b, where=where, **numbers)
    evaluation = _evaluate(client, answer, where) if options["evaluate"] else None
    if options["as_json"]:
        echo_json(answer | ({} if evaluation is None else {"evaluation": evaluation}))
        return
    _print(answer)
    if evaluation is not None:
        _print_evaluation(evaluation)


@click.command("replay")
@click.argument("model", metavar="MODEL@VERSION")
@server_option
@option("--where", "Filter of the inferences to replay, as of `query`.", "FILTER")
@option("--from start", "Time of the oldest inference, such as -24h.", "TIME")
@option("--to end", "Time before which inferences were made. [default: now]", "TIME")
@option("--limit", "Maximum number of inferences: the newest.", type=int, default=10_000)
@option(
    "--parameters",
    'Parameters of each request, such as {"score_threshold": 0.001}.',
    "JSON",
)
@option("--json as_json", "Print the report as JSON.", is_flag=True)
def replay_command(model: str, **options: Any) -> None:
    """Run a version of a model over stored images, and compare its answers with the stored ones.

    \b
    quadriga replay shapes-detector@2 --from -7d
    quadriga replay shapes-detector@2 --where meta.camera_id=north --limit 500
    """  # noqa: D301 - click leaves lines after a backspace as they are
    if "@" not in model:
        raise click.BadParameter(f"expected MODEL@VERSION, got {model}", param_hint="MODEL@VERSION")
    client = connect(options["server"])
    job = client.inferences.replay(
        model,
        parse_filter(options["where"], "--where"),
        from_=options["start"],
        to=options["end"],
        limit=options["limit"],
        parameters=parse_object(options["parameters"], "--parameters"),
    )
    report = json.loads(client.jobs.result(client.jobs.wait(job)["id"]))
    if options["as_json"]:
        echo_json(report)
        return
    counts = report["counts"]
    click.echo(
        f"{counts['replayed']:,} of {counts['selected']:,} images replayed, {counts['known']:,} known, "
        f"{counts['gone']:,} gone, {counts['failed']:,} failed, {counts['unstored']:,} answers not stored"
    )
    _print(report["comparison"])
    if report["evaluation"] is not None:
        _print_evaluation(report["evaluation"])


def _evaluate(client: Any, answer: dict[str, Any], where: Any) -> Any:
    """Evaluate the live side with its ground truth, and the other one on the same images; return the report."""
    live, other = answer["a"], answer["b"]
    if "~" in live["model"]:
        live, other = other, live
    compared = {"model": other["model"], "version": other["version"] or None}
    version = live["version"] or None
    return client.evaluate(live["model"], version=version, compare=[compared], where=where)


def _print(answer: dict[str, Any]) -> None:
    share, interval = answer["share"], answer["share_ci95"]
    by = "on the same images" if answer["paired_by"] == "image" else f"of a {answer['paired_by']}"
    if share is None:
        print_text(f"no pairs {by}: nothing to compare")
        return
    print_text(
        f"{answer['different']:,} of {answer['pairs']:,} pairs {by} differ: {share:.1%} "
        f"({interval[0]:.1%} to {interval[1]:.1%}){', the newest' if answer['partial'] else ''}"
    )
    sides = [
        f"{side['model']} {side['version'] or ''}".strip() for side in (answer["a"], answer["b"])
    ]
    print_table(("", *sides), _rows(answer), numbers=sides)
    for pair in answer["disagreements"]:
        only = f"{len(pair['only_a'])} only here, {len(pair['only_b'])} only there"
        print_text(f"{pair['a']['id']}  {pair['b']['id']}  {only}")


def _rows(answer: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return what is compared, with the texts of both sides."""
    sides = answer["a"], answer["b"]
    rows: list[tuple[str, ...]] = [
        ("failed", *(f"{side['failed']:,}" for side in sides)),
        ("predictions", *(f"{side['predictions']:,}" for side in sides)),
    ]
    for field, title, form in (
        ("latency_ms", "latency ms", "{:.1f}"),
        ("scores", "score", "{:.3f}"),
    ):
        for quantile in ("p05", "p50", "p95"):
            values = (side[field] and form.format(side[field][quantile]) for side in sides)
            rows.append((f"{title} {quantile}", *(value or "" for value in values)))
    rows += [
        (f"label {count['label']}", f"{count['a']:,}", f"{count['b']:,}")
        for count in answer["labels"][:_SHOWN_LABELS]
    ]
    return rows


def _print_evaluation(report: dict[str, Any]) -> None:
    for comparison in report["comparisons"]:
        for own, difference in zip(comparison["metrics"], comparison["differences"], strict=False):
            if own["value"] is None or difference["value"] is None:
                continue
            interval = difference["ci95"]
            text = "" if interval is None else f" ({interval[0]:+.4f} to {interval[1]:+.4f})"
            print_text(
                f"{own['type']}: {own['value'] + difference['value']:.4f} of {report['model']['name']} "
                f"{report['model']['version']}, {own['value']:.4f} of {comparison['model']['name']} "
                f"{comparison['model']['version']}, difference {difference['value']:+.4f}{text}, "
                f"on {comparison['n']:,} images"
            )
