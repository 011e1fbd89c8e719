"""The choice among results of ``fuse`` by measurements in tract and onnxruntime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest

import unfold_onnx as unfold
from unfold_onnx._tune import Engine

NAMES = [
    "as exported",
    "fuse by default",
    "--target tract",
    "--target onnxruntime",
    "--target portable",
    "--memory 50%",
    "--memory min",
]
ENGINES: list[Engine] = ["tract", "onnxruntime"]


@pytest.mark.parametrize("engine", ENGINES)
def test_reported_options_reproduce_the_result(engine: Engine, digits: Path, tmp_path: Path) -> None:
    if engine == "onnxruntime":
        pytest.importorskip("onnxruntime")
    model = digits / "bn-dynamo.onnx"
    result, report = unfold.tune(model, engine=engine, rounds=12)
    assert (report.engine, report.rounds) == (engine, 12)
    assert result == unfold.fuse(model, **report.options)
    assert report.fused.verified
    listed = [name for one in report.candidates for name in (one.name, *one.equal)]
    assert sorted(listed) == sorted(NAMES)
    exported, default = report.candidates[:2]
    assert exported.ratio is not None and exported.ratio.value == 1
    # Without its BatchNormalizations, the model has half as many operators in either engine.
    assert default.ratio is not None and default.ratio.high < 1
    assert report.chosen.name != "as exported"
    assert all(len(line) <= 80 for line in str(report).splitlines())
    assert (default.peak is None) == (engine == "onnxruntime")
    # With a path, the model is written to a file.
    path, _ = unfold.tune(model, tmp_path / "tuned.onnx", engine=engine, rounds=2)
    assert path.read_bytes().startswith(b"\x08")


def test_fixed_dimensions_are_fixed_in_each_candidate(digits: Path) -> None:
    result, report = unfold.tune(digits / "un-dynamo.onnx", fix={"batch": 3}, rounds=3)
    assert report.options["fix"] == {"batch": 3}
    shape = onnx.load_model_from_string(result).graph.input[0].type.tensor_type.shape
    assert [dim.dim_value for dim in shape.dim] == [3, 1, 8, 8]


def test_memory_goal_needs_tract(digits: Path) -> None:
    model = digits / "un-dynamo.onnx"
    options = {"goal": "memory", "max_slowdown": 1000.0, "rounds": 3}
    _, report = unfold.tune(model, dims={"batch": 64}, **options)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert report.chosen.peak is not None
    assert report.chosen.peak <= 1.01 * min(one.peak or 0 for one in report.candidates)
    assert report.options["expect"] == {"batch": 64}
    with pytest.raises(ValueError, match="goal: memory is measured with engine='tract' only"):
        unfold.tune(model, engine="onnxruntime", goal="memory")


def test_invalid_tune_options_are_refused(digits: Path) -> None:
    model = digits / "un-dynamo.onnx"
    with pytest.raises(ValueError, match="engine: 'cuda' is none of tract, onnxruntime"):
        unfold.tune(model, engine="cuda")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="rounds: 0 is too few"):
        unfold.tune(model, rounds=0)
    with pytest.raises(ValueError, match="no input has a symbolic dimension `bach`"):
        unfold.tune(model, dims={"bach": 2})


def test_session_arguments_are_those_of_each_candidate(digits: Path) -> None:
    onnxruntime: Any = pytest.importorskip("onnxruntime")
    model = digits / "un-dynamo.onnx"
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    providers = ["CPUExecutionProvider"]
    _, report = unfold.tune(model, engine="onnxruntime", rounds=2, session=(options, providers))
    assert report.chosen.failed is None
    with pytest.raises(ValueError, match="session: it is for engine='onnxruntime' only"):
        unfold.tune(model, session=(options, providers))
