"""Breaks folded models and their certificates on purpose. The checkers must find every fault.

    python tests/faults.py PROGRAM MODEL... [--checker COMMAND]... [--each N] [--seed N] [--log FILE]
    python tests/faults.py PROGRAM MODEL... --planted N [--seed N] [--log FILE]

The script folds each model with a certificate, which each checker must prove. Then it makes at most N faults of each
kind in it. tests/prove.py judges them, and so does each COMMAND ORIGINAL FUSED --certificate FILE, which must exit with
3 if it disproves. The digests in the certificate are recomputed, so that only the contents can show a fault. A fault
does not count if the model does not load or computes the same numbers. The script also counts how many faults a run in
float32 finds with a tolerance of 1e-4.

With --planted, the script makes N faults in all, in each model in turn, and only `PROGRAM prove` judges them: every
second fault with a recomputed certificate, the others without one. onnxruntime computes the original and the broken
model at five assignments of sizes to the open extents, with a different size for each symbol. A fault that is proved is
missed if onnxruntime does not load the broken model, or if its results differ at any size, also in float64.

Needs numpy, onnx and onnxruntime. The exit code is 0 if all faults are found and no fold is rejected.
"""
import argparse
import collections
import copy
import hashlib
import json
import pathlib
import shlex
import subprocess
import sys
import tempfile

import numpy as np
import onnx
import onnxruntime
import prove
from fault_kinds import FAULTS, MANY, PLANTED, Fold
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator


TOLERANCE = 1e-4


# ---- judging ----

def judged(graph, model, certificate):
    """The exit code of tests/prove.py."""
    try:
        prove.prove(graph, prove.Graph(model), certificate, {}, 0)
        return 0
    except (prove.Disproved, prove.Undecided) as verdict:
        return 3 if isinstance(verdict, prove.Disproved) else 4


def extents(value):
    return [d.dim_value if d.HasField("dim_value") else 2 for d in value.type.tensor_type.shape.dim]


def feeds(model):
    random, found = np.random.default_rng(1), {}
    stored = {t.name for t in model.graph.initializer}
    for value in model.graph.input:
        if value.name not in stored:
            type_ = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
            shape = extents(value)
            found[value.name] = random.standard_normal(shape).astype(type_) if type_.kind == "f" else random.integers(0, 2 if type_.kind == "b" else 20, shape).astype(type_)
    return found


def outputs(model, inputs):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"]).run(None, inputs)


def widened(node):
    """The node with its float tensors and Casts in float64."""
    wide = copy.deepcopy(node)
    for a in wide.attribute:
        if a.type == 4 and prove.kind_of(a.t.data_type) == "field":
            a.t.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(a.t).astype(np.float64), a.t.name))
        a.i = 11 if (node.op_type, a.name) == ("Cast", "to") and prove.kind_of(a.i) == "field" else a.i
    return wide


def in_double(model, inputs):
    """The outputs of a model in float64, by the reference evaluator."""
    model = copy.deepcopy(model)
    for tensor in model.graph.initializer:
        if tensor.data_type == 1:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float64), tensor.name))
    for node in model.graph.node:
        node.CopyFrom(widened(node))
    return ReferenceEvaluator(model).run(None, {n: v.astype(np.float64) if v.dtype == np.float32 else v for n, v in inputs.items()})


def changes_nothing(fused, broken, inputs):
    """True if a fault does not change the function, such as a fault in the bias of keys, which a Softmax cancels."""
    try:
        return difference(in_double(fused, inputs), in_double(broken, inputs)) < 1e-9
    except Exception:
        return False


def difference(first, second):
    worst = 0.0
    for a, b in zip(first, second):
        a, b = np.asarray(a, "d"), np.asarray(b, "d")
        if a.shape != b.shape:
            return None
        worst = max(worst, np.abs(a - b).max(initial=0) / (np.abs(a).max(initial=0) + 1e-30)) if np.isfinite(b).all() else np.inf
    return worst


def shapes_of(model):
    fixed = copy.deepcopy(model)
    for value in fixed.graph.input:
        for d, n in zip(value.type.tensor_type.shape.dim, extents(value)):
            d.dim_value = n
    del fixed.graph.value_info[:]
    for value in fixed.graph.output:
        value.type.tensor_type.ClearField("shape")
    inferred = onnx.shape_inference.infer_shapes(fixed, data_prop=True).graph
    return {v.name: (v.type.tensor_type.elem_type, *extents(v)) for v in [*inferred.value_info, *inferred.input, *inferred.output]
            if v.type.tensor_type.HasField("shape") and all(d.HasField("dim_value") for d in v.type.tensor_type.shape.dim)}


# ---- many faults in many models ----

SIZES = [(1, 6, 4), (2, 8, 3), (3, 5, 7), (5, 9, 2), (4, 11, 13)]  # for the first symbol, the second, and all others


def at_sizes(model, sizes):
    """Inputs of the model for these sizes of its symbols."""
    fixed, symbols = copy.deepcopy(model), {}
    for value in fixed.graph.input:
        for i, d in enumerate(value.type.tensor_type.shape.dim):
            if not d.HasField("dim_value"):
                name = d.dim_param or f"{value.name}:{i}"
                d.dim_value = symbols.setdefault(name, sizes[min(len(symbols), len(sizes) - 1)])
    # Integers are tokens of a small vocabulary.
    return {name: value % 8 if value.dtype.kind in "iu" else value for name, value in feeds(fixed).items()}


def session(model):
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def computed(run, inputs):
    try:
        return run.run(None, inputs)
    except Exception:
        return None


class Planting:
    """A model to plant faults in, with its fold and its outputs at each of the sizes that it accepts."""

    def __init__(self, program, path, folder):
        self.path, fused, written = path, folder / f"{path.stem}.fused.onnx", folder / f"{path.stem}.json"
        subprocess.run([program, "fuse", path, "-o", fused, "--verify", "off", "--quiet", "--certificate", written], check=True, capture_output=True)
        self.certificate, self.model = json.loads(written.read_text()), onnx.load(fused)
        graph, original = prove.Graph(onnx.load(path)), onnx.load(path)
        keep = [s["name"] for t in self.certificate["tensors"] for s in t["steps"] if s["op"] == "constant"]
        self.fold = Fold(prove.Run(graph, b"", graph.extents({}), keep=keep), self.model, self.certificate, shapes_of(self.model))
        self.inputs, run = [], session(original)
        for sizes in SIZES:
            inputs = at_sizes(original, sizes)
            wanted = computed(run, inputs)
            if wanted is not None:
                self.inputs.append((inputs, wanted))
        sound = subprocess.run([program, "prove", path, fused, "--certificate", written], capture_output=True)
        if sound.returncode or not self.inputs:
            raise ValueError(f"{path.name}: exit {sound.returncode} of prove, {len(self.inputs)} sizes: {sound.stderr.decode().strip()}")

    def worst(self, broken, in_float64):
        """The largest error of a broken model, or None if it does not load.

        With `in_float64`, a difference that disappears in float64 is rounding and does not count.
        """
        try:
            run = session(broken)
        except Exception:
            return None
        worst = 0.0
        for inputs, wanted in self.inputs:
            found = computed(run, inputs)
            off = difference(wanted, found) if found is not None else None
            if off is None:
                return np.inf
            if off > TOLERANCE and not (in_float64 and changes_nothing(self.model, broken, inputs)):
                worst = max(worst, off)
        return worst


def plant(program, paths, count, seed, log):
    """Plants faults, prints a summary and returns the number of missed faults."""
    counts, missed, made, random = collections.Counter(), 0, 0, np.random.default_rng(seed)
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        beds = []
        for path in paths:
            try:
                beds.append(Planting(program, path, folder))
            except Exception as error:
                print(f"left out: {path.name}: {str(error)[:160]}", flush=True)
        for attempt in range(count * 30):
            if made >= count:
                break
            bed, fault = beds[attempt % len(beds)], PLANTED[random.integers(len(PLANTED))]
            fold, is_certified = bed.fold.copy(), made % 2 == 0
            try:
                if not fault(fold, random) or fold.model == bed.model and fold.certificate == bed.certificate:
                    continue
            except (IndexError, KeyError, ValueError, TypeError):  # the model has nothing that this fault could break
                continue
            if not is_certified and fold.model == bed.model:
                continue
            del fold.model.graph.value_info[:]  # it states the old extents
            broken, written = folder / "broken.onnx", folder / "broken.json"
            onnx.save(fold.model, broken)
            command = [program, "prove", bed.path, broken]
            if is_certified:
                fold.certificate["fused"]["sha256"] = hashlib.sha256(broken.read_bytes()).hexdigest()
                written.write_text(json.dumps(fold.certificate))
                command += ["--certificate", written]
            made += 1
            code = subprocess.run(command, capture_output=True, timeout=600).returncode
            # The run in float64 takes seconds, so it is only made for faults that are proved.
            worst = bed.worst(fold.model, in_float64=code == 0)
            kind = "invalid" if worst is None else "differs" if worst > 0 else "equal"
            counts[f"{kind}: exit {code}"] += 1
            is_missed = code == 0 and kind != "equal"
            missed += is_missed
            if is_missed or code not in (0, 1, 3, 4):
                print(f"{'missed' if is_missed else 'crashed'}: {bed.path.name} {fault.__name__} #{attempt}: {kind}, off by {worst}", flush=True)
                if log:
                    onnx.save(fold.model, f"{log.name}.{attempt}.onnx")
            if log:
                print(json.dumps([bed.path.name, fault.__name__, attempt, is_certified, code, kind]), file=log, flush=True)
    print(made, "faults in", len(beds), "models:", dict(counts), "missed:", missed)
    return missed


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("models", nargs="+", type=pathlib.Path)
    parser.add_argument("--checker", action="append", default=[])
    parser.add_argument("--each", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log", type=argparse.FileType("w"))
    parser.add_argument("--planted", type=int)
    options = parser.parse_args()
    if options.planted:
        return bool(plant(options.program, options.models, options.planted, options.seed, options.log))
    checkers = [shlex.split(c) for c in options.checker]
    counts, bad = collections.defaultdict(collections.Counter), 0
    with tempfile.TemporaryDirectory() as folder:
        fused, broken, written = (pathlib.Path(folder) / n for n in ("fused.onnx", "broken.onnx", "certificate.json"))

        def verdicts(path, graph, file, model):
            codes = [judged(graph, model, json.loads(written.read_text()))]
            return codes + [subprocess.run([*c, path, file, "--certificate", written], capture_output=True).returncode for c in checkers]

        for path in options.models:
            fused.unlink(missing_ok=True)
            subprocess.run([options.program, "fuse", path, "-o", fused, "--verify", "off", "--quiet", "--certificate", written], check=True)
            certificate, model, graph = json.loads(written.read_text()), onnx.load(fused), prove.Graph(onnx.load(path))
            codes = verdicts(path, graph, fused, model)
            counts["sound"].update(f"checker {i}: exit {c}" for i, c in enumerate(codes))
            if any(codes) or not certificate["tensors"]:
                bad += any(codes)
                print(f"{path.name}: {'a sound fold is not proved' if any(codes) else 'nothing is folded'}: {codes}", flush=True)
                continue
            keep = [s["name"] for t in certificate["tensors"] for s in t["steps"] if s["op"] == "constant"]
            original = prove.Run(graph, b"", graph.extents({}), keep=keep)
            whole, inputs = Fold(original, model, certificate, shapes_of(model)), feeds(model)
            wanted = outputs(onnx.load(path), inputs)
            for fault in FAULTS:
                random, made, seen = np.random.default_rng([options.seed, FAULTS.index(fault)]), 0, set()
                for attempt in range(options.each * 8):
                    if made == options.each * MANY.get(fault, 1):
                        break
                    fold = whole.copy()
                    if not fault(fold, random):
                        continue
                    onnx.save(fold.model, broken)
                    data = broken.read_bytes()
                    fold.certificate["fused"]["sha256"] = hashlib.sha256(data).hexdigest()
                    text = json.dumps(fold.certificate)
                    mark = hashlib.sha256(data + text.encode()).digest()
                    try:
                        worst = difference(wanted, outputs(fold.model, inputs))
                    except Exception:
                        continue
                    if worst is None or mark in seen:
                        continue
                    seen.add(mark)
                    written.write_text(text)
                    codes, count = verdicts(path, graph, broken, fold.model), counts[fault.__name__]
                    if any(codes) == 0 and changes_nothing(model, fold.model, inputs):
                        count["changes nothing"] += 1
                        print(json.dumps([path.name, fault.__name__, attempt, "changes nothing"]), file=options.log or sys.stdout, flush=True)
                        continue
                    made += 1
                    count.update(["made"] + ["float32"] * bool(worst > TOLERANCE) + [f"checker {i}" for i, c in enumerate(codes) if c == 3])
                    missed = any(c != 3 for c in codes)
                    bad += missed
                    if missed:
                        onnx.save(fold.model, f"{options.log.name}.{bad}.onnx") if options.log else None
                        print(f"{path.name}: {fault.__name__} #{attempt}: {codes}, off by {worst:.1e} in float32", flush=True)
                    if options.log:
                        print(json.dumps([path.name, fault.__name__, attempt, codes, worst]), file=options.log, flush=True)
    for name, count in counts.items():
        print(f"{name:28}", dict(count))
    print("all", dict(sum((c for n, c in counts.items() if n != "sound"), collections.Counter())))
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
