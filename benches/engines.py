"""Times of models in onnxruntime, OpenVINO and tract, as ratios to the first of them: interleaved rounds, one thread.

Of onnxruntime and OpenVINO, it is the CPU time of the process, in which other work on the machine does not count.

A ratio is of latencies within one round; its median over all rounds is given with the 95 % interval of a bootstrap.
"""

import json
import subprocess
import time

import numpy as np
import onnxruntime

LOADED = 4  # how often


def unfold(*arguments, ends=(0,)):
    """What the program prints; it is found on the PATH, and has to end with one of these codes."""
    done = subprocess.run(["unfold", *arguments], capture_output=True, text=True)
    if done.returncode not in ends:
        raise RuntimeError(f"unfold {' '.join(arguments)}: {done.stderr}")
    return done.stdout


def write_between(document, mark, lines):
    """Puts lines between two marks of a document, such as <!-- forms --> and <!-- end of forms -->."""
    begin, end = f"<!-- {mark} -->", f"<!-- end of {mark} -->"
    before, rest = document.read_text().split(begin)
    document.write_text("\n".join([before + begin, "", *lines, "", end + rest.split(end)[1]]))


def session(path, optimise=True):
    """A model in onnxruntime, on one thread: a path, or the bytes of a model."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    if not optimise:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    model = path if isinstance(path, bytes) else str(path)
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def times(sessions, feed, rounds, seed=0):
    """Seconds of each round and model. The order is drawn: what always runs behind the same one has its caches."""
    taken = np.zeros((rounds + 2, len(sessions)))
    orders = np.random.default_rng(seed)
    for round in range(len(taken)):
        for which in orders.permutation(len(sessions)):
            start = time.process_time()
            sessions[which].run(None, feed)
            taken[round, which] = time.process_time() - start
    return taken[2:]


def in_onnxruntime(paths, batch, rounds):
    """A ratio for each model, as text; no batch where the models fix it."""
    numbers = np.random.default_rng(0)
    feed = {value.name: drawn(value, batch, numbers) for value in session(paths[0]).get_inputs()}
    return [told(*ratio) for ratio in ratios_of(lambda: map(session, paths), feed, rounds)]


def drawn(value, batch, numbers):
    """Something for an input of a model: elements of the normal distribution, or places in a table."""
    shape = [batch or value.shape[0], *value.shape[1:]]
    is_index = value.type == "tensor(int64)"
    return numbers.integers(0, 100, shape) if is_index else numbers.standard_normal(shape, np.float32)


def ratios_of(load, feed, rounds):
    """The ratio for each model and its interval, of onnxruntime or of OpenVINO.

    The models are loaded several times: where one happens to lie in memory is worth a percent or two.
    """
    taken = np.concatenate([times(list(load()), feed, rounds // LOADED, seed) for seed in range(LOADED)])
    ratios = taken / taken[:, :1]
    resampled = np.random.default_rng(0).integers(len(ratios), size=(1000, len(ratios)))
    low, high = np.quantile(np.median(ratios[resampled], axis=1), [0.025, 0.975], axis=0)
    return [tuple(map(float, numbers)) for numbers in zip(np.median(ratios, axis=0), low, high)]


class InOpenVINO:
    """A model in OpenVINO, on one thread, in float32 as it is."""

    def __init__(self, path):
        # Only this measurement needs it.
        import openvino

        options = {"INFERENCE_NUM_THREADS": 1, "INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}
        self.compiled = openvino.Core().compile_model(str(path), "CPU", options)

    def run(self, _, feed):
        return list(self.compiled(feed).values())


def in_tract(paths, batch, rounds):
    """The same, by `unfold bench`; a dash for what tract cannot run."""
    return [told(*ratio) if ratio else "-" for ratio in tract_ratios(paths, batch, rounds)]


def tract_ratios(paths, batch, rounds):
    """The ratio for each model and its interval; None for what tract cannot run."""
    named = [f"{name}={path}" for name, path in enumerate(paths)]
    sizes = ["--batch", str(batch)] if batch else []
    arguments = ["--reference", "0", *sizes, "--rounds", str(rounds), "--json", "--quiet"]
    report = json.loads(unfold("bench", *named, *arguments, ends=(0, 1)))
    ran = [variant["outcome"].get("ran") for variant in report["settings"][0]["variants"]]
    measured = [one["ratios"][0]["ratio"] if one and one["ratios"] else None for one in ran]
    return [ratio and (ratio["value"], ratio["low"], ratio["high"]) for ratio in measured]


def told(value, low, high):
    return f"{value:.2f} [{low:.2f}, {high:.2f}]"
