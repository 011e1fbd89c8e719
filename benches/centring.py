"""Measures the gain of centring residual streams: latencies of models with LayerNorm, relative to the exported model.

    pip install -r benches/peers/requirements.txt
    python benches/centring.py MODEL.onnx[=TWIN.onnx] ... [--batch 1] [--rounds 20]

`unfold`, which is found on the PATH, folds each model with and without `--centre`. The three models run in interleaved
rounds on one thread, in tract and in onnxruntime. TWIN is the same network with RMSNorm. It is also folded, and runs in
the same rounds. The script rewrites the table of this batch size in docs/streams.md.
"""

import argparse
import json
import tempfile
from pathlib import Path

from engines import in_onnxruntime, in_tract, session, unfold, write_between

DOCUMENT = Path(__file__).parent.parent / "docs" / "streams.md"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+", type=lambda given: [Path(path) for path in given.split("=")])
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=20)
    arguments = parser.parse_args()
    ways = [f"{engine}: {way}" for engine in ("tract", "onnxruntime") for way in ("`fuse`", "`fuse --centre`", "twin")]
    lines = [f"| model | LN to RMSNorm | {' | '.join(ways)} |", "|---|---:|---:|---:|---:|---:|---:|---:|"]
    with tempfile.TemporaryDirectory() as folder:
        fused, centred, folded = (Path(folder) / name for name in ("fused.onnx", "centred.onnx", "twin.onnx"))
        for model, *twins in arguments.models:
            unfold("fuse", str(model), "-o", str(fused), "--verify", "off")
            report = unfold("fuse", str(model), "-o", str(centred), "--verify", "off", "--centre", "--json")
            changed = [stream["centring"] for stream in json.loads(report)["streams"] if stream["centring"]]
            count = sum(len(one.get("normalizers", ())) for one in changed)
            for twin in twins:
                unfold("fuse", str(twin), "-o", str(folded), "--verify", "off")
            paths = [model, fused, centred, *[folded for _ in twins]]
            is_fixed = isinstance(session(model).get_inputs()[0].shape[0], int)
            batch = None if is_fixed else arguments.batch
            ratios = [engine(paths, batch, arguments.rounds)[1:] for engine in (in_tract, in_onnxruntime)]
            cells = [cell for engine in ratios for cell in [*engine, *[""] * (1 - len(twins))]]
            lines.append(f"| {' | '.join(map(str, [model.stem, count, *cells]))} |")
            print(lines[-1], flush=True)
    write_between(DOCUMENT, f"centring at batch {arguments.batch}", lines)


if __name__ == "__main__":
    main()
