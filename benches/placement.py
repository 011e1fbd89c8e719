"""Measures the gain if linear work is done where values have the fewest places.

    pip install -r benches/peers/requirements.txt
    taskset -c 1 python benches/placement.py [--batch 1 8] [--rounds N] [--seconds S] [--folder F] [--write] [NETWORK ...]

Exports each network of placement_networks.py, and folds it with and without the passes `placement` and `demand`. Prints
the multiply-adds of both results, the rules that applied, and the time with the passes relative to the time without, in
tract, onnxruntime and OpenVINO, on one thread. Equal results are not timed. `unfold` is found on the PATH.

An engine and a batch get as many rounds as onnxruntime runs in S seconds, at least 8 and at most N. `--folder` keeps the
folded models, and uses existing ones. `--only-export` measures nothing. `--write` updates the rows of these networks in
docs/placement.md.
"""

import argparse
import collections
import json
import math
import tempfile
import time
from pathlib import Path

import numpy as np
import onnx

from engines import InOpenVINO, drawn, ratios_of, session, told, tract_ratios, unfold, write_between
from placement_networks import NETWORKS, export, sizes

DOCUMENT = Path(__file__).parent.parent / "docs" / "placement.md"
SKIP = ["--skip", "placement", "--skip", "demand"]
HEAD = ["| network | multiply-adds without, in millions | with | rules | tract | onnxruntime | OpenVINO |"]
HEAD += ["|---|---:|---:|---|---:|---:|---:|"]
LEAST = 8  # the fewest rounds
TOLERANCE = 1e-4  # of the largest number of an output


def folded(network, folder):
    """Folds a network without and with the passes. Returns both paths, and the plan with them. Existing files stay."""
    stem = network.replace(" ", "-").replace("/", "-")
    original, without, placed = [str(folder / f"{stem}.{form}.onnx") for form in ("original", "without", "with")]
    plan = Path(placed).with_suffix(".json")
    if not plan.exists():
        export(network, original)
        arguments = ["--max-growth", "100", "--no-verify"]
        unfold("fuse", original, "-o", without, *arguments, *SKIP)
        plan.write_text(unfold("fuse", original, "-o", placed, *arguments, "--json"))
        Path(original).unlink()
    return [without, placed], json.loads(plan.read_text())


def feed_of(path, batch, extents):
    """Random inputs of a model, by name."""
    numbers = np.random.default_rng(0)
    inputs = session(path, optimise=False).get_inputs()
    return {value.name: drawn(value, batch, numbers, extents) for value in inputs}


def work(path, batch, extents):
    """The multiply-adds of products and convolutions. The model runs once, to get the operands' shapes."""
    feed = feed_of(path, batch, extents)
    model = onnx.load(path)
    given = {tensor.name: tensor.dims for tensor in model.graph.initializer}
    layers = [node for node in model.graph.node if node.op_type in ("MatMul", "Gemm", "Conv")]
    wanted = {name for node in layers for name in [*node.input[:2], node.output[0]]}
    wanted -= {value.name for value in [*model.graph.input, *model.graph.output]} | {*given}
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in wanted)
    running = session(model.SerializeToString(), optimise=False)
    names = [value.name for value in running.get_outputs()]
    shapes = {name: value.shape for name, value in zip(names, running.run(names, feed))}
    shapes |= {name: value.shape for name, value in feed.items()} | given
    products = 0
    for node in layers:
        inner = shapes[node.input[1]][1:] if node.op_type == "Conv" else shapes[node.input[0]][-1:]
        products += math.prod(shapes[node.output[0]]) * math.prod(inner)
    return products


def rules(plan):
    """How often each rule applied."""
    placed = plan.get("placed", [])
    counts = collections.Counter(move["rule"] for move in placed if not move.get("why"))
    counts["demand"] = plan.get("tidy", {}).get("selected", 0)
    return ", ".join(f"{count} {rule}" for rule, count in counts.items() if count) or "-"


def reasons(plan):
    """The rules whose operators could move but stay, with the reasons."""
    return sorted({f"{move['rule']}: {move['why']}" for move in plan.get("placed", []) if move.get("why")})


def rounds_within(seconds, most, path, feed):
    """The number of rounds of two models that onnxruntime runs in about `seconds`, at least `LEAST`, at most `most`."""
    running = session(path)
    running.run(None, feed)
    start = time.process_time()
    running.run(None, feed)
    taken = 2 * (time.process_time() - start)
    return max(LEAST, min(most, int(seconds / taken)))


def differ(paths, feed):
    """Fails if the outputs of both models differ."""
    for one, other in zip(*[session(path).run(None, feed) for path in paths]):
        np.testing.assert_allclose(one, other, rtol=0, atol=TOLERANCE * np.abs(one).max())


def ratios(paths, batch, extents, options):
    """The time of the second model relative to the first in each engine, as text."""
    feed = feed_of(paths[0], batch, extents)
    differ(paths, feed)
    rounds = rounds_within(options.seconds, options.rounds, paths[0], feed)
    found = [tract_ratios(paths, batch, rounds, extents)[1]]
    found += [ratios_of(lambda: map(load, paths), feed, rounds)[1] for load in (session, InOpenVINO)]
    return [told(*ratio) if ratio else "-" for ratio in found]


def row(network, folder, options):
    """A row of the table."""
    paths, plan = folded(network, folder)
    extents = sizes(network)
    graphs = [onnx.load(path).graph.SerializeToString(deterministic=True) for path in paths]
    if graphs[0] == graphs[1]:
        millions = work(paths[0], 1, extents) / 1e6
        why = "; ".join(reasons(plan)) or "nothing could move"
        return f"| {network} | {millions:,.0f} | {millions:,.0f} | no change: {why} | | | |"
    millions = [work(path, 1, extents) / 1e6 for path in paths]
    measured = [ratios(paths, batch, extents, options) for batch in options.batch]
    cells = [", ".join(of_engine) for of_engine in zip(*measured)]
    return f"| {network} | {millions[0]:,.0f} | {millions[1]:,.0f} | {rules(plan)} | {' | '.join(cells)} |"


def update(lines):
    """Puts rows into the document, in the order of the networks. Rows of other networks stay."""
    between = DOCUMENT.read_text().split("<!-- placement -->")[1].split("<!-- end of placement -->")[0]
    rows = {line.split(" | ")[0].removeprefix("| "): line for line in [*between.splitlines(), *lines]}
    write_between(DOCUMENT, "placement", [*HEAD, *[rows[network] for network in NETWORKS if network in rows]])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("networks", nargs="*", default=[*NETWORKS])
    parser.add_argument("--batch", type=int, nargs="*", default=[1, 8])
    parser.add_argument("--rounds", type=int, default=24)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--only-export", action="store_true")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    lines = []
    for network in options.networks:
        with tempfile.TemporaryDirectory() as temporary:
            folder = options.folder or Path(temporary)
            if options.only_export:
                folded(network, folder)
                continue
            lines.append(row(network, folder, options))
        print(lines[-1], flush=True)
        if options.write:
            update(lines)


if __name__ == "__main__":
    main()
