"""Misspelled and meaningless arguments give errors that name Python's arguments, and verdicts are sentences."""

from __future__ import annotations

import doctest
import pydoc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import unfold_onnx as unfold

from conftest import ROOT

ANY: Any = unfold
"""The package for calls that its types refuse."""


@pytest.fixture
def model(digits: Path) -> Path:
    return digits / "un-dynamo.onnx"


@pytest.mark.parametrize(
    ("call", "arguments", "message"),
    [
        ("fuse", {"dim": {"batch": 2}}, "fuse() got an unexpected keyword argument 'dim'. Did you mean 'dims'?"),
        ("fuse", {"targets": "cpu"}, "fuse() got an unexpected keyword argument 'targets'. Did you mean 'target'?"),
        ("plan", {"exclude": "LN"}, "plan() got an unexpected keyword argument 'exclude'. Did you mean 'skip'?"),
        ("inspect", {"htm": "x"}, "inspect() got an unexpected keyword argument 'htm'. Did you mean 'html'?"),
        ("tune", {"round": 1}, "tune() got an unexpected keyword argument 'round'. Did you mean 'rounds'?"),
        ("plan", {"centre": True, "center": True}, "plan() got two values for the argument 'centre'"),
    ],
)
def test_misspelled_argument_is_answered_with_the_right_one(
    model: Path, call: str, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(TypeError) as raised:
        getattr(ANY, call)(model, **arguments)
    assert str(raised.value) == message


def test_unknown_argument_without_a_neighbour_lists_all(model: Path) -> None:
    with pytest.raises(TypeError, match="argument 'zzz'; it takes model, html, allow_external"):
        ANY.inspect(model, zzz=1)


def test_both_spellings_of_centre_are_the_same(digits: Path) -> None:
    model = digits / "ln-dynamo.onnx"
    expected = unfold.fuse(model, target="portable", centre=True)
    assert unfold.fuse(model, target="portable", center=True) == expected
    assert expected != unfold.fuse(model, target="portable")
    assert ANY.plan(model, target="portable", center=True).text == unfold.plan(model, target="portable", centre=True).text


def test_sizes_are_positive_integers(model: Path) -> None:
    calls: list[tuple[type[Exception], str, Callable[[], object]]] = [
        (ValueError, r"dims\['batch'\]: -1 is too few: at least 1", partial(ANY.fuse, model, dims={"batch": -1})),
        (ValueError, r"fix\['batch'\]: 0 is too few", partial(ANY.fuse, model, fix={"batch": 0})),
        (TypeError, r"dims\['batch'\]: 'x' is not an integer", partial(ANY.verify, model, model, dims={"batch": "x"})),
        (TypeError, "dims: 3 is not a mapping", partial(ANY.prove, model, model, dims=3)),
        (ValueError, "scale_stream: 41 is too many: at most 40", partial(ANY.plan, model, scale_stream=41)),
        (ValueError, "slice: -1 is too few", partial(ANY.plan, model, slice=-1)),
        (TypeError, "tolerance: 'x' is not a number", partial(ANY.fuse, model, tolerance="x")),
    ]
    for kind, message, call in calls:
        with pytest.raises(kind, match=message):
            call()


def test_errors_have_the_names_of_arguments(model: Path) -> None:
    calls: list[tuple[str, Callable[[], object]]] = [
        ("^dims: no input has a symbolic dimension `bach`", partial(unfold.fuse, model, dims={"bach": 2})),
        ("^fix `bach`: ", partial(unfold.fuse, model, fix={"bach": 2})),
        ("^references: there is no variant `x`", partial(unfold.bench, model, references=["x"])),
    ]
    for message, call in calls:
        with pytest.raises(ValueError, match=message) as raised:
            call()
        assert "--" not in str(raised.value)


def test_verdicts_are_sentences(digits: Path, model: Path) -> None:
    assert str(unfold.verify(model, model)) == "the outputs agree: relative error 0.0e0 (tolerance 1e-4)"
    other = str(unfold.verify(model, digits / "un-legacy.onnx"))
    assert other.startswith(("the outputs differ: relative error ", "the second model does not run: ")), other
    unknown = unfold.Verification("could_not_verify", None, (), "no operator `X`")
    assert str(unknown) == "the models could not be compared: no operator `X`"


def test_help_begins_with_the_functions() -> None:
    text = pydoc.plain(pydoc.render_doc(unfold))
    description = text.split("DESCRIPTION\n")[1]
    assert description.lstrip().startswith("fuse(model, output=None, **options)")


@pytest.mark.parametrize("name", ["unfold_onnx", "unfold_onnx._api", "unfold_onnx.ir"])
def test_examples_in_docstrings_are_right(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "unfold_onnx.ir":
        pytest.importorskip("onnx_ir")
    monkeypatch.chdir(ROOT)
    module: Any = pydoc.locate(name)
    ran = doctest.testmod(module)
    assert ran.attempted > 0 and ran.failed == 0


def test_examples_of_the_page_are_right(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("onnx_ir")
    (tmp_path / "models").symlink_to(ROOT / "models")
    monkeypatch.chdir(tmp_path)
    ran = doctest.testfile(str(ROOT / "docs" / "python.md"), module_relative=False)
    assert ran.attempted > 10 and ran.failed == 0
