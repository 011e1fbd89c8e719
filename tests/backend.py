"""Folds the models of the ONNX project's backend tests and checks the results.

    python tests/backend.py PROGRAM [--prove] [--only TEXT]

The script inspects and folds each model. If the original passes its test in onnxruntime or in the reference evaluator,
the result must pass there too. With --prove, tests/prove.py must not disprove the result. Needs numpy, onnx and
onnxruntime. The exit code is 0 if no result is broken, no run panics, and no valid model is refused.
"""
import argparse, collections, json, pathlib, subprocess, sys, tempfile, warnings
import numpy as np, onnx, onnxruntime
from onnx import numpy_helper
from onnx.backend.test import loader
from onnx.reference import ReferenceEvaluator
import prove


def value(path, type_):
    data, kind = path.read_bytes(), type_.WhichOneof("value")
    if kind == "sequence_type":
        return numpy_helper.to_list(onnx.SequenceProto.FromString(data))
    if kind == "optional_type":
        return numpy_helper.to_optional(onnx.OptionalProto.FromString(data))
    return numpy_helper.to_array(onnx.TensorProto.FromString(data))


def cases(only):
    """The name, the model, pairs of inputs and expected outputs, and the tolerances of each case."""
    for kind in ("node", "simple", "pytorch-converted", "pytorch-operator"):
        for case in loader.load_model_tests(kind=kind):
            if only not in case.name:
                continue
            if case.model is not None:
                yield case.name, case.model, case.data_sets, case.rtol, case.atol
                continue
            folder, sets = pathlib.Path(case.model_dir), []
            model = onnx.load(folder / "model.onnx")
            for data in sorted(folder.glob("test_data_set_*")):
                sets.append([[value(data / f"{part}_{i}.pb", v.type) for i, v in enumerate(values)
                              if (data / f"{part}_{i}.pb").exists()]
                             for part, values in (("input", model.graph.input), ("output", model.graph.output))])
            yield case.name, model, sets, case.rtol, case.atol
    for path in sorted((pathlib.Path(loader.DATA_DIR) / "light").glob("*.onnx")):
        if only in path.stem:
            model = onnx.load(path)
            stored = {t.name for t in model.graph.initializer}
            extents = [[d.dim_value for d in i.type.tensor_type.shape.dim] for i in model.graph.input if i.name not in stored]
            inputs = [np.random.default_rng(0).random(e, np.float32) for e in extents]
            yield path.stem, model, [(inputs, None)], 1e-3, 1e-5


def session(model):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    runner = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return lambda feeds: runner.run(None, feeds)


def evaluator(model):
    runner = ReferenceEvaluator(model)
    return lambda feeds: runner.run(None, feeds)


def close(a, b, rtol, atol):
    if isinstance(a, (list, tuple)) or isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(close(x, y, rtol, atol) for x, y in zip(a, b))
    if a is None or b is None:
        return a is b
    a, b = np.asarray(a), np.asarray(b)
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.dtype.kind in "OSU":
        return a.tolist() == b.tolist()
    return np.allclose(a.astype(np.float64), b.astype(np.float64), rtol, atol, equal_nan=True)


def passes(engine, model, sets, rtol, atol):
    try:
        run, names = engine(model), [i.name for i in model.graph.input]
        stored = {t.name for t in model.graph.initializer}
        names = [n for n in names if n not in stored] if any(len(i) < len(names) for i, _ in sets) else names
        results = [run({n: v for n, v in zip(names, inputs) if v is not None}) for inputs, _ in sets]
        return results if all(e is None or close(r, list(e), rtol, atol) for r, (_, e) in zip(results, sets)) else None
    except Exception:
        return None


def judge(program, folder, name, model, sets, rtol, atol, certify):
    """A list of errors, and the number of engines that ran the result."""
    original, fused, certificate = folder / "model.onnx", folder / "fused.onnx", folder / "fused.json"
    onnx.save(model, original)
    fused.unlink(missing_ok=True)
    try:
        onnx.checker.check_model(model)
        valid = True
    except Exception:
        valid = False
    wrong = []
    extra = ["--certificate", certificate] if certify else []
    for arguments in (["inspect", original], ["fuse", original, "-o", fused, "--verify", "off", *extra]):
        done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=120)
        if done.returncode not in (0, 1) or "panicked" in done.stderr:
            wrong.append(f"{arguments[0]} panics or dies: {done.stderr.strip()[:200]}")
        elif done.returncode == 1 and valid:
            wrong.append(f"{arguments[0]} refuses a valid model: {done.stderr.strip()[:200]}")
    if wrong or not fused.exists():
        return wrong, 0
    result, ran = onnx.load(fused), 0
    if valid:
        try:
            onnx.checker.check_model(result)
        except Exception as error:
            wrong.append(f"the result is invalid: {error}")
    for engine in (session, evaluator):
        before = passes(engine, model, sets, rtol, atol)
        if before is not None:
            ran += 1
            if passes(engine, result, [(i, b) for (i, _), b in zip(sets, before)], rtol, atol) is None:
                wrong.append(f"broken in {engine.__name__}")
    if certify:
        try:
            prove.prove(prove.Graph(model), prove.Graph(result), json.loads(certificate.read_text()), {}, 0)
        except prove.Disproved as verdict:
            wrong.append(f"disproved: {verdict}")
        except prove.Undecided:
            pass  # such as if an input that is an axis has a random number
    return wrong, ran


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--prove", action="store_true")
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    counts = collections.Counter()
    with tempfile.TemporaryDirectory() as folder:
        for name, model, sets, rtol, atol in cases(options.only):
            wrong, ran = judge(options.program, pathlib.Path(folder), name, model, sets, rtol, atol, options.prove)
            counts.update(["models"] + ["findings"] * bool(wrong) + ["run"] * bool(ran))
            for finding in wrong:
                print(f"{name}: {finding}", flush=True)
    print(dict(counts))
    return bool(counts["findings"])


if __name__ == "__main__":
    sys.exit(main())
