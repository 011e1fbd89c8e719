"""Runs one tool on one file in a process of its own, whose peak of memory is that of the tool.

    python tools.py TOOL INPUT OUTPUT

Prints the seconds that the tool took, including reading and writing, and the peak of its resident set in MB.
"""

import re
import resource
import subprocess
import sys
import time
from pathlib import Path


def onnxsim(source, target):
    import onnx
    import onnxsim

    model, agrees = onnxsim.simplify(onnx.load(source))
    assert agrees
    onnx.save(model, target)


def onnxslim(source, target):
    import onnx
    import onnxslim

    onnx.save(onnxslim.slim(onnx.load(source)), target)


def onnxoptimizer(source, target):
    import onnx
    import onnxoptimizer

    onnx.save(onnxoptimizer.optimize(onnx.load(source), onnxoptimizer.get_fuse_and_elimination_passes()), target)


def onnxscript(source, target):
    import onnx
    import onnxscript.optimizer
    import onnxscript.rewriter

    onnx.save(onnxscript.rewriter.rewrite(onnxscript.optimizer.optimize(onnx.load(source))), target)


def onnxruntime(source, target, level="EXTENDED"):
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, f"ORT_ENABLE_{level}")
    options.optimized_model_filepath = target
    options.log_severity_level = 3
    onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def onnxruntime_basic(source, target):
    onnxruntime(source, target, "BASIC")


def unfold(source, target, engine="cpu"):
    command = ["unfold", "fuse", source, "-o", target, "--verify", "off", "--target", engine]
    subprocess.run(command, check=True, capture_output=True)


def unfold_for_onnxruntime(source, target):
    unfold(source, target, "onnxruntime")


def peak():
    """The peak of the resident set of this process or of a child process, in MB.

    For this process, getrusage would include the memory from before it began this program.
    """
    own = re.search(r"VmHWM:\s*(\d+)", Path("/proc/self/status").read_text())
    return max(int(own[1]), resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss) / 1e3


PEERS = {tool.__name__: tool for tool in (onnxsim, onnxslim, onnxoptimizer, onnxscript, onnxruntime)}
LEVELS = {onnxruntime_basic.__name__: onnxruntime_basic}
UNFOLD = {tool.__name__: tool for tool in (unfold, unfold_for_onnxruntime)}

if __name__ == "__main__":
    name, source, target = sys.argv[1:]
    if name in PEERS:
        __import__(name)
    start = time.perf_counter()
    (PEERS | LEVELS | UNFOLD)[name](source, target)
    print(time.perf_counter() - start, peak())
