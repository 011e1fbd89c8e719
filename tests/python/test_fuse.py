"""``fuse``, ``plan``, ``inspect`` and other functions on files and bytes, with only the wheel installed."""

from __future__ import annotations

import mmap
import subprocess
import warnings
from collections.abc import Callable
from functools import partial
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest

import unfold_onnx as unfold
from unfold_onnx._html import shown

Command = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def model(digits: Path) -> Path:
    return digits / "un-dynamo.onnx"


@pytest.fixture
def expected(model: Path, command: Command, tmp_path: Path) -> bytes:
    """The model that the command line writes."""
    path = tmp_path / "expected.onnx"
    assert command("fuse", model, "-o", path, "--quiet").returncode == 0
    return path.read_bytes()


def test_fuse_of_bytes_and_paths_equals_the_command(model: Path, expected: bytes, tmp_path: Path) -> None:
    data = model.read_bytes()
    assert unfold.fuse(model) == expected
    assert unfold.fuse(str(model)) == expected
    assert unfold.fuse(data) == expected
    assert unfold.fuse(bytearray(data)) == expected
    assert unfold.fuse(memoryview(data)) == expected
    with model.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        assert unfold.fuse(memoryview(mapped)) == expected
    written = unfold.fuse(data, tmp_path / "written.onnx")
    assert written == tmp_path / "written.onnx"
    assert written.read_bytes() == expected


def test_centre_and_scale_stream_equal_the_command(digits: Path, command: Command, tmp_path: Path) -> None:
    model, path = digits / "ln-dynamo.onnx", tmp_path / "expected.onnx"
    done = command("fuse", model, "-o", path, "--centre", "--scale-stream", "2^-3", "--quiet")
    assert done.returncode == 0
    assert unfold.fuse(model, centre=True, scale_stream=3) == path.read_bytes() != unfold.fuse(model)
    for power in (0, 41):
        with pytest.raises(ValueError, match="scale_stream"):
            unfold.fuse(model, scale_stream=power)
        with pytest.raises(ValueError, match="scale_stream"):
            unfold.plan(model, scale_stream=power)


def test_fix_equals_the_command(model: Path, command: Command, tmp_path: Path) -> None:
    path = tmp_path / "fixed.onnx"
    command("fuse", model, "-o", path, "--fix", "batch=3")
    fixed = unfold.fuse(model, fix={"batch": 3})
    assert fixed == path.read_bytes() != unfold.fuse(model)
    with pytest.raises(ValueError, match="no input has a symbolic dimension"):
        unfold.fuse(model, fix={"rows": 3})


def test_model_without_folds_stays_byte_for_byte(model: Path, tmp_path: Path) -> None:
    data = model.read_bytes()
    everything = ["*", "constant", "duplicate"]
    assert unfold.fuse(data, skip=everything) == data
    assert unfold.fuse(model, skip=everything) == data
    assert unfold.fuse(model, tmp_path / "copy.onnx", skip=everything).read_bytes() == data


def test_report_lists_sites_operators_and_verification(model: Path) -> None:
    data, report = unfold.fuse_with_report(model)
    assert repr(report) == "<FuseReport: 13 of 13 sites, 167 to 81 operators, verified>"
    assert report.changed and report.verified and report.proof is None
    assert report.verification and report.verification.outputs[0].relative < 1e-5
    before, after = report.operators
    assert (before["Div"], after.get("Div", 0)) == (7, 0)
    assert report.file_bytes == (model.stat().st_size, len(data))
    assert "the outputs agree" in str(report)
    html = report._repr_html_()  # pyright: ignore[reportPrivateUsage]
    assert html.count("<table>") == html.count("</table>") == 2


def test_plan_has_the_sites_and_refusals_of_the_command(digits: Path, command: Command) -> None:
    path = digits / "dyt-dynamo.onnx"
    plan = unfold.plan(path)
    assert str(plan).splitlines()[0].split() == ["site", "kind", "channels", "fold", "into,", "or", "why", "not"]
    site = plan["blocks.0.norm2"]
    assert (site.kind, site.family, site.channels, site.folded) == ("DyT", "pointwise", 40, True)
    assert site.pre and site.pre.outcome == "kept"
    assert [refusal.reason for refusal in site.pre.refusals] == ["not-linear", "other-reader"]
    assert site.post and (site.post.direction, len(site.post.into)) == ("forward", 1)
    assert "forward into node_MatMul" in repr(site)
    with pytest.raises(KeyError):
        plan["nowhere"]
    assert plan.tensors[0].formula and plan.tensors[0].shape
    assert repr(plan) == "<Plan: 13 of 13 sites fold, 35 new tensors>"
    assert "blocks.0.norm2" in plan._repr_html_()  # pyright: ignore[reportPrivateUsage]


def test_skip_keeps_sites_and_warns_of_unmatched_names(model: Path) -> None:
    plan = unfold.plan(model, skip="UN")
    assert len(plan.kept) == 7
    assert all(site.post and site.post.refusals[0].reason == "skipped" for site in plan.kept)
    with pytest.warns(unfold.UnfoldWarning, match="nowhere") as caught:
        unfold.fuse(model, skip=["nowhere"], verify="off")
    assert caught[0].filename == __file__


def test_verify_and_prove_compare_two_models(model: Path, digits: Path) -> None:
    fused = unfold.fuse(model, verify="off")
    verification = unfold.verify(model, fused, dims={"batch": 3})
    assert verification and verification.verdict == "agrees"
    proof = unfold.prove(model, fused)
    assert proof and proof.bound < 1e-4 and proof.tensors == 14
    other = unfold.verify(model, digits / "bn-dynamo.onnx")
    assert not other and other.verdict == "differs"
    assert not unfold.prove(digits / "bn-dynamo.onnx", digits / "ln-dynamo.onnx")


def test_inspect_page_equals_the_command_and_overwrites_only_pages(
    model: Path, command: Command, tmp_path: Path
) -> None:
    expected, page = tmp_path / "expected.html", tmp_path / "page.html"
    assert command("inspect", model, "--html", expected).returncode == 0
    assert len(unfold.inspect(model, html=page).sites) == 13
    assert page.read_bytes() == expected.read_bytes()
    unfold.inspect(model.read_bytes(), html=str(page))
    assert "blocks.0.norm1.un" in page.read_text() and model.name not in page.read_text()
    page.write_text("mine")
    with pytest.raises(unfold.UnfoldError, match="is no page"):
        unfold.inspect(model, html=page)
    assert page.read_text() == "mine"
    with pytest.raises(FileNotFoundError):
        unfold.inspect(model, html=tmp_path / "nowhere" / "page.html")
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        unfold.fuse(model, tmp_path / "nowhere" / "out.onnx")


def test_provenance_lists_the_folded_kinds(model: Path) -> None:
    before, after = unfold.inspect(model), unfold.inspect(unfold.fuse(model, verify="off"))
    assert (len(before.sites), before.provenance) == (13, ())
    [once] = after.provenance
    assert once.folded == "UN 7, attention scale 6, biased 12"
    assert once.version == unfold.__version__


def test_bench_measures_variants(model: Path) -> None:
    report = unfold.bench(model, rounds=2, batch=[1, 2])
    assert [setting.label for setting in report.settings] == ["batch=1", "batch=2"]
    fused = report.settings[0]["fused"]
    assert fused.latency and fused.latency.low <= fused.latency.value <= fused.latency.high
    assert set(fused.ratios) == {"LN twin", "floor", "as exported"}
    assert not report.differs
    assert "<svg" in report.html and "srcdoc=" in report._repr_html_()  # pyright: ignore[reportPrivateUsage]
    two = unfold.bench({"a": model, "b": unfold.fuse(model)}, rounds=2)
    assert [variant.name for variant in two.settings[0].variants] == ["a", "b"]


def test_errors_name_the_wrong_argument(model: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as missing:
        unfold.fuse(tmp_path / "nowhere.onnx")
    assert missing.value.filename == str(tmp_path / "nowhere.onnx")
    with pytest.raises(unfold.InvalidModelError, match="is not an ONNX model"):
        unfold.fuse(b"PK\x03\x04 and so on")
    with pytest.raises(unfold.InvalidModelError, match="empty"):
        unfold.plan(b"")
    with pytest.raises(ValueError, match="verify"):
        unfold.fuse(model, verify="somehow")  # type: ignore[call-overload]  # pyright: ignore
    with pytest.raises(ValueError, match="skip"):
        unfold.fuse(model, skip="[")
    with pytest.raises(ValueError, match="nobody"):
        unfold.fuse(model, dims={"nobody": 3})
    with pytest.raises(ValueError, match="output"):
        unfold.fuse(model, external_data="always")
    with pytest.raises(TypeError, match="list"):
        unfold.fuse([model])  # type: ignore[call-overload]  # pyright: ignore
    with pytest.raises(TypeError, match="tolerence"):
        unfold.fuse(model, tolerence=1.0)  # type: ignore[call-overload]  # pyright: ignore
    text = tmp_path / "notes.txt"
    text.write_text("mine")
    with pytest.raises(unfold.UnfoldError, match="is not overwritten"):
        unfold.fuse(model, text)
    assert text.read_text() == "mine"


def test_proof_prints_one_line(model: Path, digits: Path) -> None:
    proof = unfold.prove(model, unfold.fuse(model))
    assert str(proof) == "proved to be the same function: 14 new tensors, 1 point, wrong with p < 1e-8"
    assert "<td" in shown(proof) and ">14</td>" in shown(proof)
    wrong = unfold.Proof("disproved", at="y\x1b", site="norm", reason="it is another tensor")
    assert str(wrong) == "something else is computed at `y\\u{1b}` (for the site norm): it is another tensor"
    assert "it is another tensor" in shown(wrong)
    assert str(unfold.Proof("undecided", reason="Loop")) == "it could not be decided: Loop"


def test_plan_counts_tensors_in_singular_and_plural() -> None:
    tensor = unfold.Tensor("w", "float32", (2,), "mul(a, b)", ("a", "b"), ("norm",))
    assert repr(unfold.Plan((), (tensor,), 0, 0, 0, "")) == "<Plan: 0 of 0 sites fold, 1 new tensor>"
    assert repr(unfold.Plan((), (), 0, 0, 0, "")) == "<Plan: 0 of 0 sites fold, 0 new tensors>"


def test_reported_sizes_equal_the_file_sizes(model: Path, tmp_path: Path) -> None:
    split, report = unfold.fuse_with_report(model, tmp_path / "split.onnx", external_data="always")
    files = split.stat().st_size + (tmp_path / "split.onnx.data").stat().st_size
    assert report.file_bytes == (model.stat().st_size, files)


def test_invalid_options_are_refused_by_name(model: Path) -> None:
    wrong: Any = "x"
    calls: list[tuple[str, Callable[[], object]]] = [
        *[("tolerance", partial(unfold.fuse, model, tolerance=value)) for value in (inf, nan, -1.0)],
        *[("tolerance", partial(unfold.verify, model, model, tolerance=value)) for value in (inf, nan, -1.0)],
        *[("max_growth", partial(unfold.plan, model, max_growth=value)) for value in (inf, nan, -1.0)],
        ("max_growth", partial(unfold.fuse, model, max_growth=-1.0)),
        ("points", partial(unfold.prove, model, model, points=0)),
        ("seeds", partial(unfold.verify, model, model, seeds=())),
        ("rounds", partial(unfold.bench, model, rounds=0)),
        ("time", partial(unfold.bench, model, time=nan)),
        ("batch", partial(unfold.bench, model, batch=[2, 0])),
        ("threads.*at most 1024", partial(unfold.bench, model, threads=1025)),
        ("nobody.*batch", partial(unfold.bench, model, dims={"nobody": 3})),
        ("verify: 'x' is none of auto, run, prove, require, off", partial(unfold.fuse, model, verify=wrong)),
        ("target: 'x' is none of cpu, portable, onnxruntime, tract", partial(unfold.plan, model, target=wrong)),
        ("allow_external: there is no folder nope", partial(unfold.plan, model, allow_external=["nope"])),
        ("external_data: 'x' is none of auto, always, never", partial(unfold.fuse, model, external_data=wrong)),
    ]
    for message, call in calls:
        with pytest.raises(ValueError, match=message):
            call()


def test_control_characters_in_names_are_escaped() -> None:
    refusal = {"reason": {"kind": "other-reader"}, "at": "a\u202eb"}
    post = {"outcome": "kept", "forward": refusal}
    site = unfold.Site.of(
        {
            "name": "x\x1b[31m",
            "kind": {"name": "LN", "family": "online"},
            "channels": 4,
            "axis": -1,
            "nodes": [],
            "pre": None,
            "core": None,
            "post": post,
            "folded": False,
        }
    )
    told = "<Site x\\u{1b}[31m (LN, 4 channels): stays: other-reader at a\\u{202e}b>"
    assert repr(site) == told
    assert site.name == "x\x1b[31m"


def test_result_beyond_the_tolerance_raises(model: Path) -> None:
    with pytest.raises(unfold.DiffersError, match="differs"):
        unfold.fuse(model, verify="run", tolerance=0.0)


def test_external_weights_are_written_and_resolved(model: Path, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    split = unfold.fuse(model, tmp_path / "a" / "split.onnx", external_data="always", external_threshold=0, skip="*")
    weights = (tmp_path / "a" / "split.onnx.data").read_bytes()
    assert len(split.read_bytes()) < model.stat().st_size
    message = split.read_bytes()
    asked: list[tuple[str, int, int]] = []

    def resolver(location: str, offset: int, length: int) -> memoryview:
        asked.append((location, offset, length))
        return memoryview(weights)[offset : offset + length]

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        by_function = unfold.fuse(message, resolver=resolver)
        by_folder = unfold.fuse(message, resolver=tmp_path / "a")
    assert by_function == by_folder
    assert {location for location, _, _ in asked} == {"split.onnx.data"}
    with pytest.raises(unfold.ExternalDataError, match="no folder to look in"):
        unfold.fuse(message)
    (tmp_path / "a" / "split.onnx.data").unlink()
    with pytest.raises(unfold.ExternalDataError, match="split.onnx.data"):
        unfold.plan(split)


def test_exception_of_a_resolver_is_the_cause(model: Path, tmp_path: Path) -> None:
    split = unfold.fuse(model, tmp_path / "split.onnx", external_data="always", skip="*")

    def resolver(location: str, offset: int, length: int) -> bytes:
        raise LookupError(f"no {location} here")

    data = split.read_bytes()
    calls: list[Callable[[], object]] = [
        lambda: unfold.fuse(data, resolver=resolver),
        lambda: unfold.plan(data, resolver=resolver),
        lambda: unfold.verify(data, data, resolver=resolver),
    ]
    for call in calls:
        with pytest.raises(unfold.ExternalDataError, match="no split.onnx.data here") as caught:
            call()
        assert isinstance(caught.value.__cause__, LookupError)


def test_resolver_of_wrong_length_is_an_error(model: Path, tmp_path: Path) -> None:
    split = unfold.fuse(model, tmp_path / "split.onnx", external_data="always", skip="*").read_bytes()
    weights = (tmp_path / "split.onnx.data").read_bytes()
    with pytest.raises(unfold.ExternalDataError, match=r"gave 0 bytes, \d+ were asked for"):
        unfold.fuse_with_report(split, resolver=lambda location, offset, length: b"")
    with pytest.raises(unfold.ExternalDataError, match=r"gave \d+ bytes, \d+ were asked for"):
        unfold.plan(split, resolver=lambda location, offset, length: weights[offset : offset + length + 1])


def test_installed_command_matches_the_package(command: Command, digits: Path, tmp_path: Path) -> None:
    version = command("--version")
    assert (version.stdout, version.returncode) == (f"unfold {unfold.__version__}\n", 0)
    assert command("fuse").returncode == 2
    missing = command("inspect", tmp_path / "nowhere.onnx")
    assert (missing.returncode, missing.stderr.count("\n")) == (1, 1)
    differs = command("prove", digits / "bn-dynamo.onnx", digits / "un-dynamo.onnx")
    assert differs.returncode in (3, 4)
    measured = command("bench", digits / "un-dynamo.onnx", "--rounds", 2, "--json", "-q")
    assert '"resident_peak": null' not in measured.stdout and measured.returncode == 0
