"""Threads, signals, processes and progress."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import unfold_onnx as unfold


def test_threads_fold_concurrently_without_the_gil(digits: Path) -> None:
    model = (digits / "un-dynamo.onnx").read_bytes()
    expected = unfold.fuse(model)
    counted = 0
    done = threading.Event()

    def count() -> None:
        nonlocal counted
        while not done.wait(0.001):
            counted += 1

    counter = threading.Thread(target=count)
    counter.start()
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(unfold.fuse, [model] * 16))
    done.set()
    counter.join()
    assert results == [expected] * 16
    assert counted > 5


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_ctrl_c_interrupts_a_long_call(digits: Path) -> None:
    code = f"""
import unfold_onnx as unfold
print("begun", flush=True)
try:
    unfold.bench({str(digits / "un-dynamo.onnx")!r}, time=60.0)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout and process.stdout.readline() == "begun\n"
        time.sleep(0.5)
        begun = time.monotonic()
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "interrupted\n"
        process.wait(timeout=10)
    assert time.monotonic() - begun < 5


def test_progress_callback_can_stop_the_work(digits: Path) -> None:
    stages: list[str] = []

    def tell(stage: str, done: int, of: int) -> None:
        stages.append(stage)
        assert 0 <= done <= of
        raise InterruptedError(stage)

    model = digits / "un-dynamo.onnx"
    # A short call may end before its first progress report.
    for _ in range(200):
        try:
            unfold.fuse(model, verify="prove", progress=tell)
        except InterruptedError as stopped:
            assert [str(stopped)] == stages
            return
    pytest.skip("this machine is too fast")


def test_progress_bar_is_shown_with_tqdm(digits: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tqdm")
    unfold.fuse(digits / "un-dynamo.onnx", progress=True)
    assert "unfold" in capsys.readouterr().err


def test_tqdm_is_not_imported_without_progress(digits: Path) -> None:
    code = "import sys, unfold_onnx; unfold_onnx.fuse(sys.argv[1]); assert not {'tqdm', 'asyncio'} & {*sys.modules}"
    subprocess.run([sys.executable, "-c", code, digits / "un-dynamo.onnx"], check=True)


def _folded(path: str) -> int:
    return len(unfold.fuse(path))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="fork")
def test_spawned_processes_fold_and_forked_ones_raise(digits: Path) -> None:
    path = str(digits / "un-dynamo.onnx")
    expected = _folded(path)
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        assert pool.map_async(_folded, [path] * 4).get(timeout=60) == [expected] * 4
    with multiprocessing.get_context("fork").Pool(1) as pool:
        with pytest.raises(unfold.UnfoldError, match="spawn"):
            pool.map_async(_folded, [path]).get(timeout=60)
