"""The functions of the package."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar, cast, get_args, overload

from unfold_onnx import _native, _options
from unfold_onnx._bench import BenchReport
from unfold_onnx._models import AnyModel, Buffer, Kind, Program, Resolver, Script, StrPath, opened
from unfold_onnx._plan import Inspection, Plan
from unfold_onnx._progress import Progress, reporting
from unfold_onnx._verdicts import FuseReport, Proof, UnfoldWarning, Verification

if TYPE_CHECKING:
    import onnx
    import onnx_ir
    from typing_extensions import Unpack

    Message = TypeVar("Message", onnx.ModelProto, onnx_ir.Model)
    Exported = TypeVar("Exported", bound=Program)

LARGEST_POWER = 40
"""The largest k of ``2^-k`` by which residual streams are scaled."""

Verify = Literal["auto", "run", "prove", "require", "off"]
Storage = Literal["auto", "always", "never"]
Half = Literal["float16", "bfloat16"]
Ends = Literal["float32", "half"]
Target = Literal["cpu", "portable", "onnxruntime", "tract"]


class FuseOptions(TypedDict, total=False):
    """The options of :func:`fuse`, which documents them."""

    skip: str | Sequence[str]
    max_growth: float
    centre: bool
    center: bool
    merge_norms: bool
    constant_norms: bool
    scale_stream: int | None
    to: Half | None
    io: Ends
    target: Target
    fix: Mapping[str, int] | None
    slice: int | None
    memory: str | int | None
    expect: Mapping[str, int] | None
    verify: Verify
    dims: Mapping[str, int] | None
    tolerance: float | None
    external_data: Storage
    external_threshold: int
    allow_external: Sequence[StrPath]
    resolver: Resolver | None
    progress: Progress


@overload
def fuse(model: Message, output: None = None, **options: Unpack[FuseOptions]) -> Message: ...
@overload
def fuse(model: Exported, output: None = None, **options: Unpack[FuseOptions]) -> Exported: ...
@overload
def fuse(model: Script, output: None = None, **options: Unpack[FuseOptions]) -> onnx.ModelProto: ...
@overload
def fuse(model: Buffer | StrPath, output: None = None, **options: Unpack[FuseOptions]) -> bytes: ...
@overload
def fuse(model: AnyModel, output: StrPath, **options: Unpack[FuseOptions]) -> Path: ...
def fuse(model: AnyModel, output: StrPath | None = None, **options: Unpack[FuseOptions]) -> Any:
    """Folds everything that can be folded exactly, and verifies that the result computes the same function.

    Inputs and outputs keep their names, types and shapes. The model itself is never changed.

    Args:
        model: An ``onnx.ModelProto``, an ``onnx_ir.Model``, a ``torch.onnx.ONNXProgram``, an
            ``onnxscript.OnnxFunction``, the bytes of an ONNX file, or its path.
        output: The path of the result. An existing ONNX model is replaced; any other existing file is an error.
        skip: Sites to leave unchanged: names or kinds, or patterns with ``*`` and ``?``.
        max_growth: The limit for growth by copies of shared weights, in percent of the weights. Default: 5.
        centre: Whether residual streams are centred with ``target="portable"`` too, so that LayerNormalizations on them
            become RMS normalizations. With other targets, ``skip="centring"`` leaves them unchanged. ``center`` is another
            spelling.
        merge_norms: Whether a normalizer is removed if only other normalizers follow it. The result is equal up to the
            epsilon of those, and cannot be proved.
        constant_norms: Whether a normalizer is taken as constant if its variance is so small that variance + ε equals ε
            in floating point.
        scale_stream: The exponent of the power of two by which residual streams are divided, so that they fit into
            float16: 5 for ``2^-5``.
        to: Half precision, ``"float16"`` or ``"bfloat16"``, to which the result is converted.
        io: The type of inputs and outputs with ``to``: ``"float32"`` keeps them, ``"half"`` converts them.
        target: The engines for which the result is written. ``"cpu"``: if the batch is open, a product and its bias
            become one Gemm, and residual streams are centred; none of tract, onnxruntime and OpenVINO runs this slower.
            ``"portable"`` keeps LayerNormalization, MatMul and attention, for GPUs, and for quantization or conversion
            afterwards. ``"onnxruntime"`` is like ``"cpu"``, but intermediate values with open shapes are not declared.
            ``"tract"`` is like ``"cpu"``, but a layer runs before the windows that it reads.
        fix: Sizes to which symbolic dimensions of the inputs are fixed, by name. Values computed from them become
            constants.
        slice: The number of parts into which each region around a large value is cut. The parts run one after another,
            so that activations take less memory.
        memory: A goal for the peak of activations: bytes, ``"64MB"``, ``"50%"`` or ``"min"``. The regions at the peak
            are cut into as few parts as necessary.
        expect: Sizes of symbolic dimensions for computing the peak, by name.
        verify: ``"auto"`` runs both models in tract on the same random inputs. If this decides nothing, it proves that
            they are equal. ``"run"`` and ``"prove"`` do only one of the two. ``"require"`` is like ``"auto"``, but
            raises an error if neither decides. ``"off"`` does not verify.
        dims: Sizes of symbolic dimensions during verification, by name.
        tolerance: The largest error that passes, relative to the largest output. Default: 1e-4, or more if the type of
            the weights is less precise than float32.
        external_data: Whether the weights are written into a file next to ``output``. ``"auto"`` does so if the
            weights of the model are in such a file, or if the model would exceed 2 GB. Otherwise ``"always"`` or
            ``"never"``.
        external_threshold: The minimum size in bytes of a weight in that file. Default: 1024.
        allow_external: Folders below which a model with a path may have data, in addition to its own folder.
        resolver: The external data of a model in memory: a folder, or a function that returns the bytes for
            ``(location, offset, length)``. The function is called from other threads.
        progress: ``True`` shows a bar if tqdm is installed. A function is called with ``(stage, done, of)``.

    Returns:
        The result in the form of ``model``: a message for a message, a program for a program, bytes for bytes, and a
        message for an ``onnxscript.OnnxFunction``. For a path without ``output``,
        the bytes of the result; with ``output``, the path that was written. Without ``output``, weights in other files
        stay there.

    Raises:
        InvalidModelError: the model is not a valid ONNX model.
        ExternalDataError: the external data of the model cannot be read.
        DiffersError: the result computes another function, and is not returned.
        UnverifiedError: with ``verify="require"``, neither running nor a proof decides.
        TooLargeError: the result exceeds 2 GB; use ``output`` with external data.
        OSError: a file cannot be read or written.
        ValueError: an option is invalid.

    Warns:
        UnfoldWarning: the result could not be verified, a pattern of ``skip`` matches nothing, or ``centre``,
            ``merge_norms``, ``constant_norms``, ``scale_stream`` or ``slice`` had no effect.

    >>> import unfold_onnx as unfold
    >>> data = unfold.fuse("models/digits/un-dynamo.onnx")
    """
    # The warnings are reported at the line that calls this function.
    return _fused(model, output, options)[0]


@overload
def fuse_with_report(
    model: Message, output: None = None, **options: Unpack[FuseOptions]
) -> tuple[Message, FuseReport]: ...
@overload
def fuse_with_report(
    model: Exported, output: None = None, **options: Unpack[FuseOptions]
) -> tuple[Exported, FuseReport]: ...
@overload
def fuse_with_report(
    model: Script, output: None = None, **options: Unpack[FuseOptions]
) -> tuple[onnx.ModelProto, FuseReport]: ...
@overload
def fuse_with_report(
    model: Buffer | StrPath, output: None = None, **options: Unpack[FuseOptions]
) -> tuple[bytes, FuseReport]: ...
@overload
def fuse_with_report(
    model: AnyModel, output: StrPath, **options: Unpack[FuseOptions]
) -> tuple[Path, FuseReport]: ...
def fuse_with_report(
    model: AnyModel, output: StrPath | None = None, **options: Unpack[FuseOptions]
) -> tuple[Any, FuseReport]:
    """Like :func:`fuse`, with a report: the plan, the outcome of verification, and the operators before and after.

    >>> import unfold_onnx as unfold
    >>> data, report = unfold.fuse_with_report("models/digits/un-dynamo.onnx")
    >>> report
    <FuseReport: 13 of 13 sites, 167 to 81 operators, verified>
    """
    return _fused(model, output, options)


def fuse_in_place(path: Path, options: FuseOptions) -> FuseReport:
    """Like :func:`fuse_with_report`, but the result replaces the file."""
    folded, _, report = _folded(path, options)
    if folded.changed:
        report = _saved(folded, None, options, report)[1]
    return report


def _fused(model: AnyModel, output: StrPath | None, options: FuseOptions) -> tuple[Any, FuseReport]:
    """The result in the type of the model, or the path that was written."""
    if output is None and options.get("external_data", "auto") == "always":
        raise ValueError("external_data: without an output there is no place for a file")
    folded, kind, report = _folded(model, options)
    if output is not None:
        return _saved(folded, output, options, report)
    return kind.made(folded) if folded.changed else kind.same(), report


def _saved(
    folded: _native.Folded, output: StrPath | None, options: FuseOptions, report: FuseReport
) -> tuple[Path, FuseReport]:
    """Writes the result to a path, or over the model. Returns the path and the report."""
    storage = options.get("external_data", "auto"), options.get("external_threshold", 1024)
    path, _, size = folded.save(output, *storage)
    if report.changed:
        report = replace(report, file_bytes=(report.file_bytes[0], size))
    return Path(path), report


def _folded(model: AnyModel, options: FuseOptions) -> tuple[_native.Folded, Kind[Any], FuseReport]:
    known = [name for name in FuseOptions.__annotations__ if name not in _options.SPELLINGS]
    options = cast(FuseOptions, _options.spelled("fuse", options, known))
    _options.one_of("verify", options.get("verify", "auto"), get_args(Verify))
    _options.one_of("external_data", options.get("external_data", "auto"), get_args(Storage))
    _check_tolerance(options.get("tolerance"))
    source, kind = opened(model, options.get("allow_external", ()), options.get("resolver"))
    chosen = _chosen(
        options.get("skip", ()),
        options.get("max_growth", 5.0),
        options.get("centre", False),
        options.get("merge_norms", False),
        options.get("constant_norms", False),
        options.get("scale_stream"),
        options.get("to"),
        options.get("io", "float32"),
        options.get("target", "cpu"),
        options.get("fix"),
        options.get("slice"),
        options.get("memory"),
        options.get("expect"),
    )
    with reporting(options.get("progress", False)) as tell:
        folded = _native.fuse(
            source,
            chosen,
            options.get("verify", "auto"),
            _options.sizes("dims", options.get("dims")),
            options.get("tolerance"),
            tell,
        )
    for line in folded.warnings:
        warnings.warn(line, UnfoldWarning, stacklevel=4)
    return folded, kind, FuseReport.of(*folded.texts())


def _chosen(
    skip: str | Sequence[str],
    max_growth: float,
    centre: bool,
    merge_norms: bool,
    constant_norms: bool,
    scale_stream: int | None,
    to: Half | None,
    io: Ends,
    target: Target,
    fix: Mapping[str, int] | None,
    slice: int | None,
    memory: str | int | None,
    expect: Mapping[str, int] | None,
) -> _native.Chosen:
    _options.from_zero("max_growth", max_growth)
    _options.one_of("target", target, get_args(Target))
    _options.one_of("io", io, get_args(Ends))
    if slice is not None:
        _options.count("slice", slice)
    if scale_stream is not None:
        _options.count("scale_stream", scale_stream, most=LARGEST_POWER)
    patterns = [skip] if isinstance(skip, str) else list(skip)
    goal = None if memory is None else str(memory)
    fixed, expected = _options.sizes("fix", fix), _options.sizes("expect", expect)
    streams = centre, merge_norms, constant_norms, scale_stream, to, io
    return _native.Chosen(patterns, max_growth, *streams, target, fixed, slice, goal, expected)


def _check_tolerance(tolerance: float | None) -> None:
    if tolerance is not None:
        _options.from_zero("tolerance", tolerance)


@_options.checked
def plan(
    model: AnyModel,
    *,
    skip: str | Sequence[str] = (),
    max_growth: float = 5.0,
    centre: bool = False,
    merge_norms: bool = False,
    constant_norms: bool = False,
    scale_stream: int | None = None,
    to: Half | None = None,
    io: Ends = "float32",
    target: Target = "cpu",
    fix: Mapping[str, int] | None = None,
    slice: int | None = None,
    memory: str | int | None = None,
    expect: Mapping[str, int] | None = None,
    allow_external: Sequence[StrPath] = (),
    resolver: Resolver | None = None,
    progress: Progress = False,
) -> Plan:
    """Returns the plan of :func:`fuse`, without changing anything.

    The arguments and exceptions are those of :func:`fuse`.

    >>> import unfold_onnx as unfold
    >>> unfold.plan("models/digits/un-dynamo.onnx")
    <Plan: 13 of 13 sites fold, 14 new tensors>
    """
    source, _ = opened(model, allow_external, resolver)
    forms = centre, merge_norms, constant_norms, scale_stream, to, io, target
    chosen = _chosen(skip, max_growth, *forms, fix, slice, memory, expect)
    with reporting(progress) as tell:
        data, text, _ = _native.plan(source, chosen, tell)
    return Plan.of(data, text)


@_options.checked
def inspect(
    model: AnyModel,
    *,
    html: StrPath | None = None,
    allow_external: Sequence[StrPath] = (),
    resolver: Resolver | None = None,
    progress: Progress = False,
) -> Inspection:
    """Lists the normalizers of a model, and the earlier runs that folded it, from its metadata.

    The other arguments and the exceptions are those of :func:`fuse`.

    Args:
        model: As for :func:`fuse`.
        html: The path of a self-contained page to explore the model: the graph before and after, and each site with the
            formulas of its new weights, or the reason why it stays. An existing page is replaced; any other existing
            file is an error.
    """
    source, _ = opened(model, allow_external, resolver)
    name = Path(model).name if isinstance(model, (str, Path)) else "model.onnx"
    with reporting(progress) as tell:
        return Inspection.of(_native.inspect(source, name, html, tell))


@_options.checked
def verify(
    original: AnyModel,
    fused: AnyModel,
    *,
    dims: Mapping[str, int] | None = None,
    tolerance: float | None = None,
    seeds: Sequence[int] = (0,),
    allow_external: Sequence[StrPath] = (),
    resolver: Resolver | None = None,
) -> Verification:
    """Runs two models in tract on the same random inputs, once for each seed, and compares all outputs.

    The other arguments and the exceptions are those of :func:`fuse`. A model that cannot be run is not an
    error: the result has the reason, and is false.
    """
    _check_tolerance(tolerance)
    if not seeds:
        raise ValueError("seeds: there is none to draw inputs from")
    first, second = _sources(original, fused, allow_external, resolver)
    sizes = _options.sizes("dims", dims)
    _, data = _native.verify(first, second, sizes, tolerance, list(seeds))
    return Verification.of(json.loads(data))


@_options.checked
def prove(
    original: AnyModel,
    fused: AnyModel,
    *,
    certificate: StrPath | None = None,
    dims: Mapping[str, int] | None = None,
    points: int = 1,
    seed: int = 0,
    allow_external: Sequence[StrPath] = (),
    resolver: Resolver | None = None,
) -> Proof:
    """Proves that a folded model is the same function as its original, or that it is not, without running them.

    Args:
        original: The original model, byte for byte, since the folded model has its digest.
        fused: The folded model.
        certificate: The certificate of both models, from ``unfold fuse --certificate``.
        dims: Sizes of symbolic dimensions, by name.
        points: The number of random points of a finite field at which both are evaluated.
        seed: The seed of the points.
        allow_external: As for :func:`fuse`.
        resolver: As for :func:`fuse`, for both models.

    Raises:
        CertificateError: the certificate cannot be used.
        UnfoldError: the errors of :func:`fuse`, or the certificate belongs to other files.
    """
    _options.count("points", points)
    first, second = _sources(original, fused, allow_external, resolver)
    sizes = _options.sizes("dims", dims)
    return Proof.of(json.loads(_native.prove(first, second, certificate, sizes, points, seed)))


def _sources(
    original: AnyModel, fused: AnyModel, allow_external: Sequence[StrPath], resolver: Resolver | None
) -> tuple[_native.Source, _native.Source]:
    first, second = (opened(model, allow_external, resolver)[0] for model in (original, fused))
    return first, second


@_options.checked
def bench(
    model: AnyModel | Mapping[str, AnyModel],
    *,
    batch: Sequence[int] = (),
    dims: Mapping[str, int] | None = None,
    rounds: int | None = None,
    time: float = 10.0,
    threads: int = 1,
    references: Sequence[str] = (),
    resolver: Resolver | None = None,
) -> BenchReport:
    """Measures the speed-up by folding in tract on this machine.

    Args:
        model: A model, which is measured with LayerNorm, as exported, folded, and without normalizers; or several by
            name, which are compared with each other.
        batch: Sizes of the batch; each is measured separately.
        dims: Sizes of symbolic dimensions, by name.
        rounds: The number of rounds; each variant runs once per round.
        time: The maximum duration of the rounds of each batch size in seconds, without ``rounds``.
        threads: The number of threads for matrix products.
        references: The variants with which the others are compared.
        resolver: As for :func:`fuse`.

    Raises:
        UnfoldError: the errors of :func:`fuse`, or a size does not fit the model.
        ValueError: an option is invalid, or no model has a dimension of ``dims``.
    """
    sizes, batches = _options.sizes("dims", dims), _options.counts("batch", batch)
    if rounds is not None:
        _options.count("rounds", rounds)
    _options.above_zero("time", time)
    _options.count("threads", threads, _options.THREADS)
    models = model if isinstance(model, Mapping) else {_name(model): model}
    sources = [(name, opened(one, (), resolver)[0]) for name, one in models.items()]
    return BenchReport.of(_native.bench(sources, batches, sizes, rounds, time, threads, list(references)))


def _name(model: AnyModel) -> str:
    return Path(model).stem if isinstance(model, (str, Path)) else "model"
