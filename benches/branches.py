"""Compares `unfold fuse` with merging the branches of a network by hand, as is done before deployment.

    pip install -r benches/fusions/requirements.txt
    python benches/branches.py
    python benches/branches.py --keep folder repvit_m1

Each network has random weights and statistics that fit them. Each exporter writes it twice: as trained, and after
timm's `reparameterize_model`. `unfold`, which is found on the PATH, folds the trained form and proves the result.
Prints the numbers of nodes, the latencies relative to the form merged by hand, and the errors of the merged form and of
the folded form relative to the trained form. The table is in docs/branches.md.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import onnx
import timm
import torch
from timm.models import reparameterize_model
from torch import nn

HERE = Path(__file__).resolve().parent
sys.path += [str(HERE), str(HERE.parent / "models")]

from engines import in_onnxruntime, in_tract, unfold  # noqa: E402
from export import EXPORTERS, export, relative_error, run  # noqa: E402
from swap import randomize  # noqa: E402

NETWORKS = ("fastvit_t8", "repvit_m1", "repvgg_a0", "mobileone_s0")
CALIBRATION = 4


def calibrated(name):
    """Returns a network whose statistics are those of its own values, as after training."""
    torch.manual_seed(0)
    model = randomize(timm.create_model(name, pretrained=False))
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.reset_running_stats()
            module.momentum = None
    model.train()
    with torch.no_grad():
        for _ in range(CALIBRATION):
            model(torch.randn(8, *model.default_cfg["input_size"]))
    return model.eval()


def files(name, exporter, folder):
    """Writes three files: the network merged by hand, the trained network, and the result of `fuse` on the latter.

    Returns the paths, and the errors of the first and the third file relative to the second.
    """
    model = calibrated(name)
    inputs = {"x": torch.randn(2, *model.default_cfg["input_size"])}
    paths = [folder / f"{name}.{exporter}.{variant}.onnx" for variant in ("merged", "trained", "unfold")]
    merged, trained, fused = paths
    if not trained.exists():
        export(model, inputs, str(trained), exporter)
        export(reparameterize_model(model), inputs, str(merged), exporter)
    unfold("fuse", str(trained), "-o", str(fused), "--quiet")
    of_merged, of_trained, of_fused = (run(str(path), {"x": inputs["x"].numpy()}) for path in paths)
    return paths, [relative_error(output, of_trained) for output in (of_merged, of_fused)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("networks", nargs="*", default=NETWORKS)
    parser.add_argument("--keep", type=Path, help="a folder for the files; those that are there are not made anew")
    parser.add_argument("--rounds", type=int, default=40)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print("| network | exporter | nodes | by hand | `fuse` | in tract | in onnxruntime | by hand off by | `fuse` off by |")
    print("|---|---|---:|---:|---:|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.keep or Path(temporary)
        folder.mkdir(exist_ok=True)
        for name in arguments.networks:
            for exporter in EXPORTERS:
                paths, off = files(name, exporter, folder)
                merged, trained, fused = (len(onnx.load(path).graph.node) for path in paths)
                ratios = [engine([paths[0], paths[2]], 1, arguments.rounds)[1] for engine in (in_tract, in_onnxruntime)]
                cells = [name, exporter, trained, merged, fused, *ratios, *(f"{error:.1e}" for error in off)]
                print(f"| {' | '.join(map(str, cells))} |", flush=True)


if __name__ == "__main__":
    main()
