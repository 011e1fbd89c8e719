"""What the package does."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar, get_args, overload

from unfold_onnx import _native, _options
from unfold_onnx._bench import BenchReport
from unfold_onnx._models import AnyModel, Buffer, Resolver, StrPath, opened
from unfold_onnx._plan import Inspection, Plan
from unfold_onnx._progress import Progress, told
from unfold_onnx._verdicts import FuseReport, Proof, UnfoldWarning, Verification

if TYPE_CHECKING:
    import onnx
    import onnx_ir
    from typing_extensions import Unpack

    Message = TypeVar("Message", onnx.ModelProto, onnx_ir.Model)

Verify = Literal["auto", "run", "prove", "require", "off"]
Storage = Literal["auto", "always", "never"]
Target = Literal["cpu", "portable", "onnxruntime", "tract"]


class FuseOptions(TypedDict, total=False):
    """What :func:`fuse` can be told; see there."""

    skip: str | Sequence[str]
    max_growth: float
    centre: bool
    merge_norms: bool
    scale_stream: int | None
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
def fuse(model: Buffer | StrPath, output: None = None, **options: Unpack[FuseOptions]) -> bytes: ...
@overload
def fuse(model: AnyModel, output: StrPath, **options: Unpack[FuseOptions]) -> Path: ...
def fuse(model: AnyModel, output: StrPath | None = None, **options: Unpack[FuseOptions]) -> Any:
    """Folds everything that is exact to fold, and verifies that the result computes the same.

    Inputs and outputs keep their names, types and shapes. The model itself is never changed.

    Args:
        model: An ``onnx.ModelProto``, an ``onnx_ir.Model``, the bytes of an ONNX file, or its path.
        output: Where the result is written. An ONNX model that is there is replaced, and nothing else is.
        skip: Sites that are left as they are: names or kinds, or patterns of them with ``*`` and ``?``.
        max_growth: How much copies of shared weights may add, in percent of the weights; 5 if nothing is said.
        centre: Whether residual streams are centred with ``target="portable"`` too, so that LayerNormalizations on them
            become RMS normalizations; ``skip="centring"`` leaves them with the other targets.
        merge_norms: Whether a normalizer goes where only others follow it, which is equal up to what those add to their
            variances. It cannot be proved.
        scale_stream: The power of two that residual streams are divided by, 5 for ``2^-5``, so that float16 holds them.
        target: The engines that the result is for. ``"cpu"``: a product and its bias are one Gemm wherever the batch is
            open, and residual streams are centred, which none of tract, onnxruntime and OpenVINO runs slower.
            ``"portable"`` keeps LayerNormalization, MatMul and attention as they are, for GPUs, and for quantizing or
            converting afterwards. ``"onnxruntime"`` is ``"cpu"`` where open shapes of values within are not declared;
            ``"tract"`` is ``"cpu"`` where a layer comes before the windows that it reads.
        fix: Sizes of symbolic dimensions of the inputs, by name: the result declares them as numbers, and computes nothing
            from them.
        slice: Cuts each region around a large value into so many parts that run one after the other, so that activations
            take less memory.
        memory: A goal for the peak of activations: bytes, ``"64MB"``, ``"50%"`` or ``"min"``. What holds the peak is cut
            into as few parts as bring it under the goal.
        expect: Sizes of symbolic dimensions that the peak is computed with, by name.
        verify: ``"auto"`` runs both models in tract on the same random inputs and, where that says nothing, proves that
            they are the same; ``"run"`` and ``"prove"`` do one of the two; ``"require"`` is ``"auto"``, and an error
            where neither can decide; ``"off"`` is neither.
        dims: Sizes of symbolic dimensions while verifying, by name.
        tolerance: The largest difference that passes, as a part of the largest output; by default 1e-4, or what the
            type of the weights allows.
        external_data: Whether the weights go into a file beside ``output``: ``"auto"`` where the model has such a file
            or they are too many for 2 GB, ``"always"`` or ``"never"``.
        external_threshold: From how many bytes on a weight goes there, 1024 if nothing is said.
        allow_external: Folders below which a model with a path may have data, besides its own.
        resolver: Where a model in memory has its external data: a folder, or a function that gives the bytes for
            ``(location, offset, length)``. It is called from other threads.
        progress: ``True`` shows a bar, where tqdm is installed; a function is told ``(stage, done, of)``.

    Returns:
        What was given: a message for a message, bytes for bytes. For a path without ``output`` it is the bytes of the
        result, with ``output`` the path that was written. Weights in other files stay there, where nothing is written.

    Raises:
        InvalidModelError: it is no ONNX model.
        ExternalDataError: its external data cannot be had.
        DiffersError: the result computes something else. It is not handed out.
        UnverifiedError: with ``verify="require"``, nobody can tell.
        TooLargeError: the result has more than 2 GB; ``output`` and external data have room for it.
        OSError: a file cannot be read or written.
        ValueError: an option means nothing.

    Warns:
        UnfoldWarning: where the result could not be verified, a pattern of ``skip`` is nowhere, or nothing came of
            ``centre``, ``merge_norms``, ``scale_stream`` or ``slice``.

    >>> import unfold_onnx as unfold
    >>> data = unfold.fuse("models/digits/un-dynamo.onnx")
    """
    # The warnings of the other are for whoever called this one.
    return _fused(model, output, options)[0]


@overload
def fuse_with_report(
    model: Message, output: None = None, **options: Unpack[FuseOptions]
) -> tuple[Message, FuseReport]: ...
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
    """As :func:`fuse`, with what was done: the plan, what verifying found, and the operators before and after.

    >>> import unfold_onnx as unfold
    >>> data, report = unfold.fuse_with_report("models/digits/un-dynamo.onnx")
    >>> report
    <FuseReport: 13 of 13 sites, 167 to 81 operators, verified>
    """
    return _fused(model, output, options)


def _fused(model: AnyModel, output: StrPath | None, options: FuseOptions) -> tuple[Any, FuseReport]:
    unknown = set(options) - set(FuseOptions.__annotations__)
    if unknown:
        raise TypeError(f"unexpected keyword arguments: {', '.join(sorted(unknown))}")
    _options.one_of("verify", options.get("verify", "auto"), get_args(Verify))
    _options.one_of("external_data", options.get("external_data", "auto"), get_args(Storage))
    _check_tolerance(options.get("tolerance"))
    if output is None and options.get("external_data", "auto") == "always":
        raise ValueError("external_data: there is no output that a file could be beside")
    source, kind = opened(model, options.get("allow_external", ()), options.get("resolver"))
    chosen = _chosen(
        options.get("skip", ()),
        options.get("max_growth", 5.0),
        options.get("centre", False),
        options.get("merge_norms", False),
        options.get("scale_stream"),
        options.get("target", "cpu"),
        options.get("fix"),
        options.get("slice"),
        options.get("memory"),
        options.get("expect"),
    )
    with told(options.get("progress", False)) as tell:
        folded = _native.fuse(
            source,
            chosen,
            options.get("verify", "auto"),
            options.get("dims") or {},
            options.get("tolerance"),
            tell,
        )
    for line in folded.warnings:
        warnings.warn(line, UnfoldWarning, stacklevel=3)
    report = FuseReport.of(*folded.told())
    if output is not None:
        storage = options.get("external_data", "auto"), options.get("external_threshold", 1024)
        path, _, size = folded.save(output, *storage)
        if report.changed:
            report = replace(report, file_bytes=(report.file_bytes[0], size))
        return Path(path), report
    return kind.made(folded) if folded.changed else kind.same(), report


def _chosen(
    skip: str | Sequence[str],
    max_growth: float,
    centre: bool,
    merge_norms: bool,
    scale_stream: int | None,
    target: Target,
    fix: Mapping[str, int] | None,
    slice: int | None,
    memory: str | int | None,
    expect: Mapping[str, int] | None,
) -> _native.Chosen:
    _options.from_zero("max_growth", max_growth)
    _options.one_of("target", target, get_args(Target))
    patterns = [skip] if isinstance(skip, str) else list(skip)
    goal = None if memory is None else str(memory)
    slicing = slice, goal, dict(expect or {})
    return _native.Chosen(patterns, max_growth, centre, merge_norms, scale_stream, target, dict(fix or {}), *slicing)


def _check_tolerance(tolerance: float | None) -> None:
    if tolerance is not None:
        _options.from_zero("tolerance", tolerance)


def plan(
    model: AnyModel,
    *,
    skip: str | Sequence[str] = (),
    max_growth: float = 5.0,
    centre: bool = False,
    merge_norms: bool = False,
    scale_stream: int | None = None,
    target: Target = "cpu",
    fix: Mapping[str, int] | None = None,
    slice: int | None = None,
    memory: str | int | None = None,
    expect: Mapping[str, int] | None = None,
    allow_external: Sequence[StrPath] = (),
    resolver: Resolver | None = None,
    progress: Progress = False,
) -> Plan:
    """Says what :func:`fuse` would do, and changes nothing.

    The arguments and what is raised are those of :func:`fuse`.

    >>> import unfold_onnx as unfold
    >>> unfold.plan("models/digits/un-dynamo.onnx")
    <Plan: 13 of 13 sites fold, 14 new tensors>
    """
    source, _ = opened(model, allow_external, resolver)
    chosen = _chosen(skip, max_growth, centre, merge_norms, scale_stream, target, fix, slice, memory, expect)
    with told(progress) as tell:
        data, text, _ = _native.plan(source, chosen, tell)
    return Plan.of(data, text)


def inspect(
    model: AnyModel,
    *,
    html: StrPath | None = None,
    allow_external: Sequence[StrPath] = (),
    resolver: Resolver | None = None,
    progress: Progress = False,
) -> Inspection:
    """Lists the normalizers of a model, and what was folded in it before, as its metadata tells.

    The other arguments and what is raised are those of :func:`fuse`.

    Args:
        model: As for :func:`fuse`.
        html: Where one self-contained page is written to look at the model: the graph before and after, and each site
            with the formulas of its new weights, or the reason why it stays. A page that is there is replaced, and
            nothing else is.
    """
    source, _ = opened(model, allow_external, resolver)
    name = Path(model).name if isinstance(model, (str, Path)) else "model.onnx"
    with told(progress) as tell:
        return Inspection.of(_native.inspect(source, name, html, tell))


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

    The other arguments and what is raised are those of :func:`fuse`. A model that cannot be run is no error: the
    result says why, and is not true.
    """
    _check_tolerance(tolerance)
    if not seeds:
        raise ValueError("seeds: there is none to draw inputs from")
    first, second = _sources(original, fused, allow_external, resolver)
    _, data = _native.verify(first, second, dims or {}, tolerance, list(seeds))
    return Verification.of(json.loads(data))


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
    """Proves that a folded model is the same function as its original, or that it is not; nothing runs.

    Args:
        original: The model as it was, byte for byte: the folded one names its digest.
        fused: What it was folded to.
        certificate: What ``unfold fuse --certificate`` wrote for the two.
        dims: Sizes of symbolic dimensions, by name.
        points: At how many random points of a finite field both are evaluated.
        seed: What the points are drawn from.
        allow_external: As for :func:`fuse`.
        resolver: As for :func:`fuse`; it is asked for both models.

    Raises:
        CertificateError: the certificate cannot be used.
        UnfoldError: what :func:`fuse` raises, or the certificate is for other files.
    """
    _options.count("points", points)
    first, second = _sources(original, fused, allow_external, resolver)
    return Proof.of(json.loads(_native.prove(first, second, certificate, dims or {}, points, seed)))


def _sources(
    original: AnyModel, fused: AnyModel, allow_external: Sequence[StrPath], resolver: Resolver | None
) -> tuple[_native.Source, _native.Source]:
    first, second = (opened(model, allow_external, resolver)[0] for model in (original, fused))
    return first, second


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
    """Measures what folding is worth, in tract, on this machine.

    Args:
        model: A model, which is measured with LayerNorm, as exported, folded, and without normalizers; or several by
            name, which are compared with each other.
        batch: Sizes of the batch, each measured by itself.
        dims: Sizes of symbolic dimensions, by name.
        rounds: How many rounds; each variant runs once in each.
        time: How long the rounds of each batch may take, in seconds, where ``rounds`` is not given.
        threads: For matrix products.
        references: The variants that the others are compared with.
        resolver: As for :func:`fuse`.

    Raises:
        UnfoldError: what :func:`fuse` raises, or a size that does not fit the model.
        ValueError: an option means nothing, or no model has a dimension of ``dims``.
    """
    for size in batch:
        _options.count("batch", size)
    if rounds is not None:
        _options.count("rounds", rounds)
    _options.above_zero("time", time)
    _options.count("threads", threads, _options.THREADS)
    models = model if isinstance(model, Mapping) else {_name(model): model}
    sources = [(name, opened(one, (), resolver)[0]) for name, one in models.items()]
    return BenchReport.of(_native.bench(sources, list(batch), dims or {}, rounds, time, threads, list(references)))


def _name(model: AnyModel) -> str:
    return Path(model).stem if isinstance(model, (str, Path)) else "model"
