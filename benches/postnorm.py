"""Measures folded post-norm networks with fixed statistics: the operators that remain, and the errors.

    pip install -r benches/peers/requirements.txt
    python benches/postnorm.py [--network BERT] [--exporter dynamo|legacy] [--rounds 20]

The networks are a BERT and the Transformer of IWSLT14, both post-norm. Their statistics are measured by running them.
`unfold`, which is found on the PATH, folds each network. An error is the largest difference between onnxruntime in
float32 and PyTorch in float64, relative to the largest output. The floor is the same network without normalizers, also
folded. No operator may occur more often than in the floor, and latencies in tract are relative to the floor. The script
rewrites the table in docs/streams.md.
"""

import argparse
import copy
import json
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import torch

from engines import in_tract, unfold, write_between

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "models"))

from export import EXPORTERS, export, relative_error, run  # noqa: E402
from networks import build  # noqa: E402
from swap import replace, sites  # noqa: E402

NETWORKS = {"BERT": "bert", "IWSLT14": "encoder_decoder_post"}
KINDS = {"BN": "bn", "UN": "un", "MABN": "mabn", "PN\\*": "pnstar"}


def network(name, kind):
    """The network in inference mode, and its inputs. Scales and shifts are random, and statistics are measured."""
    torch.manual_seed(0)
    model, inputs = build(name)
    names = sites(model)
    model = replace(model, kind)
    parameters = [parameter for site in names for parameter in model.get_submodule(site).parameters()]
    with torch.no_grad():
        for parameter in parameters:
            noise = torch.rand(parameter.shape) - 0.5
            parameter.copy_(1 + noise if parameter.any() else 0.4 * noise)
        model.train()
        for _ in range(40):
            model(**{key: value[:, torch.randperm(value.shape[1])] for key, value in inputs.items()})
    return model.eval(), inputs


def operators(path):
    return Counter(node.op_type for node in onnx.load(path).graph.node)


def is_proved(original, fused):
    return subprocess.run(["unfold", "prove", original, fused], stdout=subprocess.DEVNULL).returncode == 0


def row(title, name, exporter, rounds, folder):
    """The lines of one network."""
    paths = {part: str(folder / f"{part}.onnx") for part in ("model", "fused", "bare", "floor")}
    export(*network(name, "none"), paths["bare"], exporter)
    unfold("fuse", paths["bare"], "-o", paths["floor"], "--verify", "off")
    for kind, short in KINDS.items():
        model, inputs = network(name, short)
        export(model, inputs, paths["model"], exporter)
        report = json.loads(unfold("fuse", paths["model"], "-o", paths["fused"], "--verify", "off", "--json"))
        found = [site for site in report["sites"] if site["kind"]["family"] == "offline"]
        scales = [site["basis"] for site in found if "basis" in site]
        least, most = min(scale["least"] for scale in scales), max(scale["most"] for scale in scales)
        with torch.no_grad():
            exact = copy.deepcopy(model).double()(**inputs).numpy()
        feed = {key: value.numpy() for key, value in inputs.items()}
        errors = [relative_error(run(paths[part], feed).astype(np.float64), exact) for part in ("model", "fused")]
        over = operators(paths["fused"]) - operators(paths["floor"])
        # A shift may become the bias of a layer that had none.
        over = {op: count for op, count in over.items() if op != "Add"}
        ratio = in_tract([paths["floor"], paths["fused"]], None, rounds)[1]
        gone = f"{sum(site['folded'] for site in found)} of {len(found)}"
        verdict = "proved" if is_proved(paths["model"], paths["fused"]) else "not proved"
        cells = [title, kind, gone, f"{least:.2g} to {most:.2g}", *(f"{error:.1e}" for error in errors), over or "nothing", ratio, verdict]
        yield f"| {' | '.join(map(str, cells))} |"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--network", action="append", choices=NETWORKS, help="all of them if none is named")
    parser.add_argument("--exporter", default="dynamo", choices=EXPORTERS)
    parser.add_argument("--rounds", type=int, default=20)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    lines = [
        "| network | kind | gone | D | error as exported | error folded | over the floor | tract, ÷ floor | |",
        "|---|---|---:|---|---:|---:|---|---:|---|",
    ]
    with tempfile.TemporaryDirectory() as folder:
        for title in arguments.network or NETWORKS:
            for line in row(title, NETWORKS[title], arguments.exporter, arguments.rounds, Path(folder)):
                lines.append(line)
                print(line, flush=True)
    write_between(HERE.parent / "docs" / "streams.md", "postnorm", lines)


if __name__ == "__main__":
    main()
