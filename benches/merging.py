"""Measures the cost of a normalizer directly before another one: latencies without it, over the folded model.

    pip install -r benches/peers/requirements.txt
    python benches/merging.py [--blocks 6] [--channels 384] [--batch 1] [--rounds 20]

One network has residual blocks `x + N(f(N(x)))` with RMS normalizations N, like Gemma 3. Its f is two linear layers
without biases, with a Relu between them. In the other network, a layer without a bias compresses a normalized value,
and the result is normalized again, like the queries of DeepSeek V2. `unfold`, which is found on the PATH, folds each
network with and without `--merge-norms`. Both results run in interleaved rounds on one thread, in tract and in
onnxruntime. The script rewrites the table in docs/streams.md.
"""

import argparse
import json
import tempfile
from pathlib import Path

import torch
from engines import in_onnxruntime, in_tract, unfold, write_between
from torch import nn

DOCUMENT = Path(__file__).parent.parent / "docs" / "streams.md"


class Sandwich(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.before, self.behind = nn.RMSNorm(channels, 1e-6), nn.RMSNorm(channels, 1e-6)
        self.up, self.down = nn.Linear(channels, 4 * channels, False), nn.Linear(4 * channels, channels, False)

    def forward(self, x):
        return x + self.behind(self.down(torch.relu(self.up(self.before(x)))))


class Compressed(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.before, self.behind = nn.RMSNorm(channels, 1e-6), nn.RMSNorm(channels // 4, 1e-6)
        self.down, self.up = nn.Linear(channels, channels // 4, False), nn.Linear(channels // 4, channels, False)

    def forward(self, x):
        return x + self.up(self.behind(self.down(self.before(x))))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--blocks", type=int, default=6)
    parser.add_argument("--channels", type=int, default=384)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=20)
    arguments = parser.parse_args()
    lines = ["| network | normalizers | gone | bound | tract | onnxruntime |", "|---|---:|---:|---:|---:|---:|"]
    with tempfile.TemporaryDirectory() as folder:
        exported, fused, merged = (Path(folder) / name for name in ("model.onnx", "fused.onnx", "merged.onnx"))
        for name, block in {"sandwich": Sandwich, "compressed": Compressed}.items():
            torch.manual_seed(0)
            network = nn.Sequential(*[block(arguments.channels) for _ in range(arguments.blocks)]).eval()
            torch.onnx.export(network, torch.randn(arguments.batch, 196, arguments.channels), exported, dynamo=True)
            unfold("fuse", str(exported), "-o", str(fused))
            report = json.loads(unfold("fuse", str(exported), "-o", str(merged), "--merge-norms", "--json"))
            ratios = [engine([fused, merged], None, arguments.rounds)[1] for engine in (in_tract, in_onnxruntime)]
            counts = 2 * arguments.blocks, len(report["merged"]), f"{report['slack']:.1e}"
            lines.append(f"| {' | '.join(map(str, [name, *counts, *ratios]))} |")
            print(lines[-1], flush=True)
    write_between(DOCUMENT, "merging", lines)


if __name__ == "__main__":
    main()
