"""The best result of :func:`unfold_onnx.fuse` for an engine on this machine, found by measuring."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from random import Random
from time import perf_counter
from typing import Any, Literal, Optional, get_args

from unfold_onnx import _native, _options
from unfold_onnx._api import fuse_with_report
from unfold_onnx._bench import Latency
from unfold_onnx._models import AnyModel, Resolver, StrPath, opened
from unfold_onnx._progress import Progress, reporting
from unfold_onnx._verdicts import FuseReport

Engine = Literal["tract", "onnxruntime"]
Goal = Literal["latency", "memory"]

LEAST_ROUNDS = 10
"""The minimum number of rounds. With fewer, the interval of a median has no meaning."""
SAMPLE = 0.005
"""The minimum duration of a sample in seconds."""
WARM_UP = 2
"""The number of runs of a candidate before it is measured."""
NUMPY = {"f16": "float16", "f32": "float32", "f64": "float64", "i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64"}
NUMPY.update({"u8": "uint8", "u16": "uint16", "u32": "uint32", "u64": "uint64", "bool": "bool"})
"""The element types, by their names in tract."""


@dataclass(frozen=True)
class TunedCandidate:
    """A measured result of :func:`unfold_onnx.fuse`."""

    name: str
    options: dict[str, Any]
    """The arguments of :func:`unfold_onnx.fuse` that produce it."""
    equal: tuple[str, ...]
    """The names of candidates with the same model, which is measured once."""
    ratio: Optional[Latency]
    """The ratio of its time to that of the exported file, with its 95 % interval; ``None`` if it did not run."""
    seconds: Optional[Latency]
    """The median time of a run, with its 95 % interval; ``None`` if it did not run."""
    peak: Optional[int]
    """The peak of the heap in a run in bytes; ``None`` if it was not measured."""
    file_bytes: int
    failed: Optional[str]
    """The reason why it did not run."""

    @classmethod
    def of(cls, data: Any) -> TunedCandidate:
        ratio, seconds = (None if one is None else Latency(**one) for one in (data["ratio"], data["seconds"]))
        failed = data.get("failed")
        equal = tuple(data["equal"])
        return cls(
            data["name"], data["options"], equal, ratio, seconds, data["peak"], data["file_bytes"], failed
        )


@dataclass(frozen=True)
class TuneReport:
    """The candidates and the choice. ``str(report)`` is a table of them."""

    engine: str
    rounds: int
    candidates: tuple[TunedCandidate, ...]
    chosen: TunedCandidate
    options: dict[str, Any]
    """The arguments of :func:`unfold_onnx.fuse` that produce the result."""
    fused: FuseReport
    """The report of that call."""
    text: str = field(repr=False)

    def __str__(self) -> str:
        return self.text


@_options.checked
def tune(
    model: AnyModel,
    output: StrPath | None = None,
    *,
    engine: Engine = "tract",
    goal: Goal = "latency",
    max_slowdown: float = 10.0,
    dims: Mapping[str, int] | None = None,
    fix: Mapping[str, int] | None = None,
    rounds: int | None = None,
    time: float = 10.0,
    threads: int = 1,
    session: tuple[Any, Sequence[str]] | None = None,
    allow_external: Sequence[StrPath] = (),
    resolver: Resolver | None = None,
    progress: Progress = False,
) -> tuple[Any, TuneReport]:
    """Measures the results of several options of :func:`unfold_onnx.fuse` on this machine, and returns the best one.

    Candidates are the exported model, the default, each other target, and slices if something can be cut. They run in
    interleaved rounds on the same random inputs. The default is preferred if it is as fast as the fastest candidate,
    within 1 % or within the 95 % interval.

    Args:
        model: As for :func:`unfold_onnx.fuse`.
        output: As for :func:`unfold_onnx.fuse`.
        engine: The engine in which candidates run: ``"tract"``, which is part of this package, or ``"onnxruntime"``,
            which must be installed.
        goal: ``"latency"``, or ``"memory"`` for the smallest peak of the heap, in tract.
        max_slowdown: The maximum slowdown relative to the fastest candidate with ``goal="memory"``, in percent.
        dims: Sizes of symbolic dimensions, by name. Default: 1 for a batch.
        fix: Sizes to which symbolic dimensions are fixed in all candidates, as for :func:`unfold_onnx.fuse`.
        rounds: The number of rounds; each candidate runs once per round.
        time: The maximum duration of the rounds in seconds, without ``rounds``.
        threads: The number of threads for matrix products.
        session: The ``onnxruntime.SessionOptions`` and the execution providers of each session, with
            ``engine="onnxruntime"``. Default: ``threads`` threads on the CPU.
        allow_external: As for :func:`unfold_onnx.fuse`.
        resolver: As for :func:`unfold_onnx.fuse`.
        progress: As for :func:`unfold_onnx.fuse`.

    Returns:
        The result, as :func:`unfold_onnx.fuse` returns it, and the report.

    Raises:
        ImportError: onnxruntime is not installed.
        UnfoldError: the errors of :func:`unfold_onnx.fuse`, or no candidate runs in the engine.
        ValueError: an option is invalid.
    """
    _options.one_of("engine", engine, get_args(Engine))
    _options.one_of("goal", goal, get_args(Goal))
    _options.from_zero("max_slowdown", max_slowdown)
    _options.above_zero("time", time)
    _options.count("threads", threads, _options.THREADS)
    if rounds is not None:
        _options.count("rounds", rounds)
    if engine == "onnxruntime" and goal == "memory":
        raise ValueError("goal: memory is measured with engine='tract' only")
    if engine == "tract" and session is not None:
        raise ValueError("session: it is for engine='onnxruntime' only")
    sizes, fixed = _options.sizes("dims", dims), _options.sizes("fix", fix)
    source, _ = opened(model, allow_external, resolver)
    with reporting(progress) as tell:
        candidates = _native.Candidates(source, sizes, fixed, rounds, time, threads, tell)
        if engine == "tract":
            data, text = candidates.in_tract(goal, max_slowdown, tell)
        else:
            times = _in_onnxruntime(candidates, rounds, time, session or _cpu(threads), tell)
            data, text = candidates.in_onnxruntime(times)
    tuned: Any = json.loads(data)
    measured = tuple(map(TunedCandidate.of, tuned["candidates"]))
    chosen = next(one for one in measured if one.name == tuned["chosen"])
    options = dict(chosen.options)
    if "memory" in options:
        options["expect"] = dict(candidates.sizes())
    if fixed:
        options["fix"] = fixed
    result, fused = fuse_with_report(  # type: ignore[call-overload, misc, unused-ignore]
        model,
        output,  # pyright: ignore[reportArgumentType]
        **options,
        dims=dims,
        allow_external=allow_external,
        resolver=resolver,
    )
    return result, TuneReport(engine, tuned["rounds"], measured, chosen, options, fused, text)


def _in_onnxruntime(
    candidates: _native.Candidates,
    rounds: int | None,
    time: float,
    session_arguments: tuple[Any, Sequence[str]],
    tell: Callable[[str, int, int], object] | None,
) -> list[tuple[list[float], str | None]]:
    """The times of each candidate in interleaved rounds, or the reason why it does not run."""
    import numpy

    # The package has no types.
    onnxruntime: Any = import_module("onnxruntime")
    feeds = {
        name: numpy.frombuffer(data, NUMPY[element]).reshape(shape)  # pyright: ignore[reportUnknownMemberType]
        for name, element, shape, data in candidates.inputs()
    }
    options, providers = session_arguments
    sessions: dict[int, Any] = {}
    times: list[tuple[list[float], str | None]] = []
    for at in range(len(candidates)):
        with tempfile.TemporaryDirectory() as folder:
            path = os.fspath(Path(folder) / "candidate.onnx")
            candidates.save(at, path)
            try:
                session: Any = onnxruntime.InferenceSession(path, options, providers=list(providers))
                for _ in range(WARM_UP):
                    session.run(None, feeds)
            except Exception as error:  # Its exceptions have no common base class.
                times.append(([], " ".join(str(error).split())))
                continue
        sessions[at] = session
        times.append(([], None))
    _run_rounds(sessions, feeds, times, rounds, time, tell)
    return times


def _cpu(threads: int) -> tuple[Any, Sequence[str]]:
    """The options and the provider of a session with this number of threads on the CPU."""
    onnxruntime: Any = import_module("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3
    return options, ["CPUExecutionProvider"]


def _run_rounds(
    sessions: dict[int, Any],
    feeds: dict[str, Any],
    times: list[tuple[list[float], str | None]],
    rounds: int | None,
    time: float,
    tell: Callable[[str, int, int], object] | None,
) -> None:
    """Takes one sample of every session per round: the mean time of as many runs as take 5 ms.

    The order of a round is random, because the session that ran before affects the time of a run.
    """
    begun, done, order, draw = perf_counter(), 0, list(sessions), Random(0)
    while order and (done < rounds if rounds else done < LEAST_ROUNDS or perf_counter() - begun < time):
        if tell is not None:
            tell(f"round {done + 1}", done, rounds or done + 1)
        draw.shuffle(order)
        for at in order:
            times[at][0].append(_sample(sessions[at], feeds))
        done += 1


def _sample(session: Any, feeds: dict[str, Any]) -> float:
    """The mean time of as many runs as take `SAMPLE` seconds."""
    total, runs = 0.0, 0
    while total < SAMPLE:
        start = perf_counter()
        session.run(None, feeds)
        total += perf_counter() - start
        runs += 1
    return total / runs
