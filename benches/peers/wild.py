"""Compares unfold with its peers on models from other authors.

    pip install -r benches/peers/requirements.txt
    python benches/peers/architectures.py --folder models
    python benches/peers/wild.py models
    python benches/peers/wild.py models --rounds 40 --tract
    python benches/peers/trained.py --folder trained
    python benches/peers/wild.py trained --rounds 30 --tract --openvino

A line has the error of unfold's result, the numbers of nodes and of constant affines in the result of each tool, and
the operators that onnxruntime no longer fuses. It also has the time of unfold's default result, relative to the model
and to the result of the fastest peer. Outputs are compared on random inputs of two batches. The model runs without
optimizations of onnxruntime, and the results run with all of them. Results of other tools stay in the folder, and are
used again. `unfold`, which is found on the PATH, always runs. The exit code is 1 if unfold fails, or if its outputs
differ. Writes the table of docs/wild.md that `--mark` names.
"""

import argparse
import datetime
import importlib.metadata
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import onnx

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))

from affines import Graph  # noqa: E402
from engines import InOpenVINO, ratios_of, session, told, tract_ratios, unfold, write_between  # noqa: E402
from fused import is_fused, lost, optimised  # noqa: E402
from peers import run_tool  # noqa: E402
from trained import SHAPES  # noqa: E402

DOCUMENT = HERE.parent.parent / "docs" / "wild.md"
PEERS = ["onnxsim", "onnxslim", "onnxruntime"]
OURS = "unfold"
TOLERANCE = 1e-4
DRAWN = {"tensor(float)": np.float32, "tensor(int64)": np.int64, "tensor(int32)": np.int32}


def feed(name, model, batch, seed=0):
    """Random inputs of a model in onnxruntime. The name of its file may determine the shapes."""
    draw = np.random.default_rng(seed)
    inputs = {}
    for value in model.get_inputs():
        shape = SHAPES.get(name, {}).get(value.name, value.shape)
        kind = DRAWN[value.type]
        if isinstance(shape, int):
            inputs[value.name] = np.array(shape, kind)
            continue
        shape = [extent if isinstance(extent, int) else batch for extent in shape]
        numbers = draw.standard_normal(shape) if kind is np.float32 else draw.integers(1, 100, shape)
        inputs[value.name] = numbers.astype(kind)
    return inputs


def difference(source, target):
    """The largest difference of the outputs of two models, relative to the largest output, for two batches."""
    models = [session(source, optimise=False), session(target)]
    worst = 0.0
    for batch in (2, 3):
        given = feed(source.stem, models[0], batch, seed=batch)
        for expected, actual in zip(*(model.run(None, given) for model in models)):
            if expected.shape != actual.shape or not np.array_equal(np.isfinite(expected), np.isfinite(actual)):
                return float("inf")
            scale = np.abs(expected).max(initial=0) or 1
            worst = max(worst, float(np.abs(actual.astype(float) - expected).max(initial=0) / scale))
    return worst


def results(source):
    """The files that tools wrote, by the name of the tool, and the errors of the tools that failed."""
    made, failed = {}, {}
    folder = source.parent / "results"
    folder.mkdir(exist_ok=True)
    for name in [*PEERS, OURS]:
        target = folder / f"{source.stem}.{name}.onnx"
        if name == OURS or not target.exists():
            target.unlink(missing_ok=True)
            seconds, reason = run_tool(name, source, target)
            if seconds is None:
                failed[name] = reason
                continue
        made[name] = target
    return made, failed


def counts(source, made):
    """The numbers of nodes and of constant affines in each file, by the name of the tool; `""` for the original."""
    models = {name: onnx.load(path) for name, path in {"": source, **made}.items()}
    return {name: (len(model.graph.node), Graph(model).affines()) for name, model in models.items()}


def row(source, arguments):
    """The cells of one model, the relative times of unfold's result by column, and whether the outputs agree."""
    made, failed = results(source)
    if OURS in failed:
        return [source.stem, f"**{failed[OURS]}**"], {}, False
    errors = {name: difference(source, path) for name, path in made.items()}
    off = errors.pop(OURS)
    equal = off <= max(TOLERANCE, 2 * min(errors.values(), default=0))
    counted = counts(source, made)
    cells = [source.stem, f"{off:.0e}" if equal else f"**{off:.0e}**"]
    cells += [" / ".join(map(str, counted[name])) if name in counted else "-" for name in ["", *PEERS, "unfold"]]
    fused = [Counter(node.op_type for node in optimised(path) if is_fused(node)) for path in (source, made["unfold"])]
    cells.append(", ".join(f"{kind} {fused[0][kind]} to {fused[1][kind]}" for kind in lost(*fused)))
    ratios = measured(source, made, arguments)
    cells += [told(*ratios[column]) if ratios.get(column) else "-" for column in columns(arguments)]
    return cells, ratios, equal


def columns(arguments):
    """The names of the columns for relative times: the engine, and the model that is the reference."""
    engines = ["onnxruntime", *["tract"] * arguments.tract, *["OpenVINO"] * arguments.openvino] if arguments.rounds else []
    return [f"{engine}, ÷ {other}" for engine in engines for other in ("exported", "best peer")]


def measured(source, made, arguments):
    """The time of unfold's result relative to the model and to the fastest peer's result, with intervals."""
    if not arguments.rounds:
        return {}
    peers = [path for name, path in made.items() if name in PEERS]
    paths = [made[OURS], source, *peers]
    given = feed(source.stem, session(source), 1)
    found = {"onnxruntime": ratios_of(lambda: map(session, paths), given, arguments.rounds)}
    # Other engines do not have the operators that onnxruntime writes.
    standard = [made[OURS], source, *[path for path in peers if path != made.get("onnxruntime")]]
    if arguments.tract:
        found["tract"] = tract_ratios(standard, 1, arguments.rounds)
    if arguments.openvino:
        found["OpenVINO"] = ratios_of(lambda: map(InOpenVINO, standard), given, arguments.rounds)
    ratios = {}
    for engine, (_, exported, *others) in found.items():
        ratios[f"{engine}, ÷ exported"] = exported and turned(exported)
        ran = [ratio for ratio in others if ratio]
        ratios[f"{engine}, ÷ best peer"] = turned(min(ran)) if ran else None
    return ratios


def turned(ratio):
    """The reciprocal of a ratio and of its interval."""
    value, low, high = ratio
    return 1 / value, 1 / high, 1 / low


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("models", nargs="*", metavar="MODEL")
    parser.add_argument("--rounds", type=int, default=0, help="how often to time; not at all if nothing is said")
    parser.add_argument("--tract", action="store_true", help="time in tract too")
    parser.add_argument("--openvino", action="store_true", help="time in OpenVINO too")
    parser.add_argument("--mark", help="the table of docs/wild.md to write")
    arguments = parser.parse_args()
    heads = ["model", "off by", "as exported", *PEERS, "unfold", "no longer fused", *columns(arguments)]
    versions = [f"{name} {importlib.metadata.version(name)}" for name in PEERS] + [unfold("--version").strip()]
    lines = [f"{datetime.date.today()}, {', '.join(versions)}.", "", f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    print("\n".join(lines), flush=True)
    fine, every = True, []
    for source in sorted(arguments.folder.glob("*.onnx")):
        if not arguments.models or source.stem in arguments.models:
            cells, ratios, well = row(source, arguments)
            lines.append(f"| {' | '.join(cells)} |")
            print(lines[-1], flush=True)
            fine &= well
            every.append(ratios)
    for column in columns(arguments):
        known = [ratios[column][0] for ratios in every if ratios.get(column)]
        if not known:
            continue
        mean = float(np.exp(np.mean(np.log(known))))
        lines += ["", f"{column}: geometric mean over {len(known)} models {mean:.3f}, from {min(known):.3f} to {max(known):.3f}."]
        print(lines[-1])
    if arguments.mark:
        write_between(DOCUMENT, arguments.mark, lines)
    sys.exit(not fine)


if __name__ == "__main__":
    main()
