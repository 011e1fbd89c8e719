"""Measures the times of models in onnxruntime, OpenVINO and tract relative to the first model, on one thread.

All models run once in each round. For onnxruntime and OpenVINO, a time is the CPU time of the process, so other work on
the machine does not count. A ratio compares two times of one round. The result is the median over all rounds, with the
95 % interval of a bootstrap.
"""

import json
import subprocess
import time

import numpy as np
import onnxruntime

LOADED = 4  # the number of times that each model is loaded


def unfold(*arguments, ends=(0,)):
    """Runs the program `unfold` from the PATH, and returns its output. Fails unless the exit code is in `ends`."""
    done = subprocess.run(["unfold", *arguments], capture_output=True, text=True)
    if done.returncode not in ends:
        raise RuntimeError(f"unfold {' '.join(arguments)}: {done.stderr}")
    return done.stdout


def write_between(document, mark, lines):
    """Writes lines between two marks of a document, such as <!-- forms --> and <!-- end of forms -->."""
    begin, end = f"<!-- {mark} -->", f"<!-- end of {mark} -->"
    before, rest = document.read_text().split(begin)
    document.write_text("\n".join([before + begin, "", *lines, "", end + rest.split(end)[1]]))


def session(path, optimise=True):
    """Loads a model, given by its path or its bytes, into onnxruntime with one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    if not optimise:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    model = path if isinstance(path, bytes) else str(path)
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def times(sessions, feed, rounds, seed=0):
    """The seconds that each model takes in each round.

    The order is random, because the model that ran before affects the caches.
    """
    taken = np.zeros((rounds + 2, len(sessions)))
    orders = np.random.default_rng(seed)
    for round in range(len(taken)):
        for which in orders.permutation(len(sessions)):
            start = time.process_time()
            sessions[which].run(None, feed)
            taken[round, which] = time.process_time() - start
    return taken[2:]


def in_onnxruntime(paths, batch, rounds):
    """The time of each model relative to the first one in onnxruntime, as text. No `batch` if the models fix it."""
    numbers = np.random.default_rng(0)
    feed = {value.name: drawn(value, batch, numbers) for value in session(paths[0]).get_inputs()}
    return [told(*ratio) for ratio in ratios_of(lambda: map(session, paths), feed, rounds)]


def drawn(value, batch, numbers, sizes={}):
    """Random elements for an input of a model: normally distributed floats, or indices of a table.

    `sizes` has the extents of open axes other than the batch, by name.
    """
    shape = [batch or value.shape[0], *[sizes.get(extent, extent) for extent in value.shape[1:]]]
    is_index = value.type == "tensor(int64)"
    return numbers.integers(0, 100, shape) if is_index else numbers.standard_normal(shape, np.float32)


def ratios_of(load, feed, rounds):
    """The time of each model relative to the first one, and its interval. `load` loads all models into one engine.

    The models are loaded several times, because their addresses in memory change the time by a percent or two.
    """
    taken = np.concatenate([times(list(load()), feed, rounds // LOADED, seed) for seed in range(LOADED)])
    ratios = taken / taken[:, :1]
    resampled = np.random.default_rng(0).integers(len(ratios), size=(1000, len(ratios)))
    low, high = np.quantile(np.median(ratios[resampled], axis=1), [0.025, 0.975], axis=0)
    return [tuple(map(float, numbers)) for numbers in zip(np.median(ratios, axis=0), low, high)]


class InOpenVINO:
    """A model in OpenVINO with one thread. Float32 values are not computed in a narrower type."""

    def __init__(self, path):
        # openvino is imported here, because only measurements in OpenVINO need it.
        import openvino

        options = {"INFERENCE_NUM_THREADS": 1, "INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}
        self.compiled = openvino.Core().compile_model(str(path), "CPU", options)

    def run(self, _, feed):
        return list(self.compiled(feed).values())


def in_tract(paths, batch, rounds):
    """The time of each model relative to the first one in tract, as text. A dash if tract cannot run the model."""
    return [told(*ratio) if ratio else "-" for ratio in tract_ratios(paths, batch, rounds)]


def tract_ratios(paths, batch, rounds, sizes={}):
    """The time of each model relative to the first one, and its interval. `None` if tract cannot run the model."""
    named = [f"{name}={path}" for name, path in enumerate(paths)]
    extents = ["--batch", str(batch)] if batch else []
    for name, extent in sizes.items():
        extents += ["--dim", f"{name}={extent}"]
    arguments = ["--reference", "0", *extents, "--rounds", str(rounds), "--json", "--quiet"]
    report = json.loads(unfold("bench", *named, *arguments, ends=(0, 1)))
    ran = [variant["outcome"].get("ran") for variant in report["settings"][0]["variants"]]
    measured = [one["ratios"][0]["ratio"] if one and one["ratios"] else None for one in ran]
    return [ratio and (ratio["value"], ratio["low"], ratio["high"]) for ratio in measured]


def told(value, low, high):
    return f"{value:.2f} [{low:.2f}, {high:.2f}]"
