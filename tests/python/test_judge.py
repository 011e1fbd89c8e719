"""``judge`` and ``assert_same`` on pairs of models."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import unfold_onnx as unfold

onnx = pytest.importorskip("onnx")


@pytest.fixture
def model(digits: Path) -> Path:
    return digits / "un-dynamo.onnx"


def changed(model: Path, factor: float) -> bytes:
    """The model with its largest weight multiplied by a factor."""
    proto = onnx.load(model)
    largest = max((one for one in proto.graph.initializer if one.data_type == 1), key=lambda one: len(one.raw_data))
    array = onnx.numpy_helper.to_array(largest) * np.float32(factor)
    largest.CopyFrom(onnx.numpy_helper.from_array(array.astype(np.float32), largest.name))
    data: bytes = proto.SerializeToString()
    return data


def test_copy_is_the_same(model: Path) -> None:
    judgement = unfold.judge(model, model.read_bytes())
    assert judgement and judgement.verdict == "same"
    assert str(judgement).startswith("proved to be the same function: 1 point, wrong with p < ")
    unfold.assert_same(model, model.read_bytes())


def test_folded_model_is_the_same_up_to_rounding(model: Path) -> None:
    fused = unfold.fuse(model, verify="off")
    judgement = unfold.judge(model, fused)
    assert judgement.verdict == "rounded" and not judgement
    assert all(tensor.units <= tensor.allowed for tensor in judgement.tensors)
    assert judgement.is_accepted(["rounding"]) and not judgement.is_accepted(["casts"])
    unfold.assert_same(model, fused, accept="rounding")
    with pytest.raises(AssertionError, match='accept="rounding" allows it'):
        unfold.assert_same(model, fused)


def test_changed_weight_is_different_and_its_witness_shows_it(model: Path, tmp_path: Path) -> None:
    witness = tmp_path / "inputs.npz"
    other = changed(model, 1.01)
    judgement = unfold.judge(model, other, witness=witness)
    assert judgement.verdict == "different" and judgement.relative > 1e-4
    runtime = pytest.importorskip("onnxruntime")
    feeds = dict(np.load(witness))
    runs = [runtime.InferenceSession(data).run([judgement.output], feeds)[0] for data in (model.read_bytes(), other)]
    difference = np.abs(runs[0] - runs[1]).max() / np.abs(runs[0]).max()
    assert difference == pytest.approx(judgement.relative, rel=0.05)
    with pytest.raises(AssertionError, match=r"the second model computes something else: a run differs by .*witness="):
        unfold.assert_same(model, other, accept=["rounding", "casts"])
    with pytest.raises(AssertionError, match=r"; the inputs in .*inputs\.npz show it$"):
        unfold.assert_same(model, other, witness=witness)


def test_another_network_is_undecided_or_different(model: Path, digits: Path) -> None:
    with pytest.raises(AssertionError):
        unfold.assert_same(model, digits / "dtn-dynamo.onnx", accept=["rounding", "casts"])


def test_unknown_verdict_is_an_error(model: Path) -> None:
    with pytest.raises(ValueError, match="accept: 'everything' is none of rounding, casts"):
        unfold.assert_same(model, model, accept=["everything"])  # type: ignore[list-item] # pyright: ignore
