"""Models as objects of the packages onnx and onnx_ir."""

from __future__ import annotations

import hashlib
import os
import struct
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import unfold_onnx as unfold

onnx: Any = pytest.importorskip("onnx")


@pytest.mark.parametrize("name", ["un-dynamo", "bn-legacy", "dtn-dynamo", "ln-legacy"])
def test_fuse_of_a_model_proto_equals_fuse_of_its_bytes(digits: Path, name: str) -> None:
    path = digits / f"{name}.onnx"
    model = onnx.load(path)
    before = model.SerializeToString()
    fused = unfold.fuse(model)
    assert type(fused) is onnx.ModelProto
    assert fused.SerializeToString() == unfold.fuse(path)
    assert model.SerializeToString() == before
    onnx.checker.check_model(fused)


def test_large_model_proto_folds_like_its_serialization() -> None:
    helper, numpy_helper = onnx.helper, onnx.numpy_helper
    numpy = pytest.importorskip("numpy")
    weight = numpy.arange(512 * 1024, dtype=numpy.float32).reshape(512, 1024)
    scale = numpy.linspace(1, 2, 512, dtype=numpy.float32)
    nodes = [
        helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(scale, "t")),
        helper.make_node("Mul", ["x", "c"], ["scaled"], name="scale"),
        helper.make_node("MatMul", ["scaled", "w"], ["product"], name="product"),
        helper.make_node("Add", ["product", "b"], ["y"], name="bias"),
    ]
    ends = [helper.make_tensor_value_info(*end) for end in (("x", 1, ["n", 512]), ("y", 1, ["n", 1024]))]
    initializers = [
        numpy_helper.from_array(weight, "w"),
        helper.make_tensor("b", onnx.TensorProto.FLOAT, [1024], weight[1]),
    ]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], initializers, doc_string="words")
    model = helper.make_model(graph, producer_name="tests")
    del model.opset_import[:]
    model.opset_import.append(helper.make_opsetid("", 20))
    helper.set_model_props(model, {"key": "value"})
    data: bytes = model.SerializeToString()
    fused: bytes = unfold.fuse(model, verify="off").SerializeToString()
    assert fused == unfold.fuse(data, verify="off")
    # The digest is that of the serialized model.
    [once] = unfold.inspect(fused).provenance
    assert once.original == hashlib.sha256(data).hexdigest()


def test_model_protos_are_folded_in_threads(digits: Path) -> None:
    model = onnx.load(digits / "un-dynamo.onnx")
    expected = unfold.fuse(model).SerializeToString()
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(unfold.fuse, [model] * 16))
    assert [result.SerializeToString() for result in results] == [expected] * 16


@pytest.mark.skipif(sys.platform != "linux", reason="the peak of memory is read from /proc")
def test_folding_a_model_proto_needs_one_copy_of_its_weights(tmp_path: Path) -> None:
    width, layers = 2048, 12
    nodes: list[Any] = []
    weights = [onnx.helper.make_tensor("s", onnx.TensorProto.FLOAT, [width], struct.pack("<f", 2.0) * width, raw=True)]
    for layer in range(layers):
        raw = struct.pack("<f", 0.5 + layer) * width**2
        weights.append(onnx.helper.make_tensor(f"w{layer}", onnx.TensorProto.FLOAT, [width, width], raw, raw=True))
        nodes.append(onnx.helper.make_node("Mul", [f"x{layer}", "s"], [f"y{layer}"]))
        nodes.append(onnx.helper.make_node("MatMul", [f"y{layer}", f"w{layer}"], [f"z{layer}"]))
        nodes.append(onnx.helper.make_node("Tanh", [f"z{layer}"], [f"x{layer + 1}"]))
    ends = [
        [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n", width])] for name in ("x0", f"x{layers}")
    ]
    graph = onnx.helper.make_graph(nodes, "g", *ends, weights)
    path = tmp_path / "m.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=10), path)
    code = """
import sys
import onnx
import unfold_onnx as unfold

def memory(what):
    [found] = [line for line in open("/proc/self/status") if line.startswith(what)]
    return int(found.split()[1]) * 1024

model = onnx.load(sys.argv[1])
before = memory("VmRSS")
# Forgets the peak until here.
open("/proc/self/clear_refs", "w").write("5")
fused = unfold.fuse(model, verify="off")
assert len(fused.graph.node) == 24
print(memory("VmHWM") - before)
"""
    # With one worker thread, the peak does not depend on scheduling.
    one_thread = {**os.environ, "RAYON_NUM_THREADS": "1"}
    run = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=True, env=one_thread)
    # The peak is one copy of the resulting message, and one or two tensors that are read and written.
    assert float(run.stdout) / path.stat().st_size < 1.3


def test_unknown_field_of_a_model_proto_is_refused(digits: Path) -> None:
    # A field that ONNX does not define is also refused in a file.
    data = (digits / "un-dynamo.onnx").read_bytes() + bytes([0xFA, 0x3F, 1, 0])
    model = onnx.ModelProto.FromString(data)
    with pytest.raises(unfold.InvalidModelError, match="field 1023"):
        unfold.fuse(model)


def test_model_proto_keeps_its_external_weights(digits: Path, tmp_path: Path) -> None:
    split = unfold.fuse(digits / "un-dynamo.onnx", tmp_path / "m.onnx", external_data="always", skip="*")
    model = onnx.load(split, load_external_data=False)
    fused = unfold.fuse(model, resolver=tmp_path)
    onnx.external_data_helper.load_external_data_for_model(fused, str(tmp_path))
    assert unfold.verify(digits / "un-dynamo.onnx", fused)


def test_onnx_ir_model_stays_one(digits: Path, tmp_path: Path) -> None:
    ir: Any = pytest.importorskip("onnx_ir")
    path = digits / "un-dynamo.onnx"
    fused = unfold.fuse(ir.load(path))
    assert isinstance(fused, ir.Model)
    assert len(list(fused.graph)) == 81
    assert unfold.verify(path, ir.to_proto(fused))
    split = unfold.fuse(path, tmp_path / "m.onnx", external_data="always", skip="*")
    again = unfold.fuse(ir.load(split))
    for value in again.graph.initializers.values():
        value.const_value.numpy()
