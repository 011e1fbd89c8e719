"""Writes the files of `tests/wild`: small models by other exporters than PyTorch's.

    pip install -r models/wild.txt
    python models/wild.py

Weights are random, from a fixed seed, and normalizers far from the identity.
"""

import sys
from pathlib import Path

import numpy as np
import onnx

FOLDER = Path(__file__).resolve().parent.parent / "tests" / "wild"
WIDTH, HIDDEN, CLASSES, TOKENS = 16, 32, 4, 8


def numbers(seed=0):
    random = np.random.default_rng(seed)
    return lambda *shape: random.normal(0, 0.5, shape).astype(np.float32)


def sklearn():
    """PCA that whitens, and a perceptron, by skl2onnx."""
    from sklearn.decomposition import PCA
    from sklearn.neural_network import MLPRegressor
    from sklearn.pipeline import make_pipeline
    from skl2onnx import to_onnx

    samples = np.random.default_rng(0).normal(3, 2, (200, WIDTH)).astype(np.float32)
    perceptron = MLPRegressor(hidden_layer_sizes=(HIDDEN,), max_iter=50, random_state=0)
    pipeline = make_pipeline(PCA(WIDTH // 2, whiten=True), perceptron).fit(samples, samples.sum(1))
    return to_onnx(pipeline, samples[:1])


def jax():
    """A block with LayerNorm and RMSNorm by their formulas, by jax2onnx."""
    import jax
    import jax.numpy as jnp
    from jax2onnx import to_onnx

    draw = numbers()
    gamma, beta, scale = draw(WIDTH), draw(WIDTH), draw(WIDTH)
    enters, bias, leaves, head = draw(WIDTH, HIDDEN), draw(HIDDEN), draw(HIDDEN, WIDTH), draw(WIDTH, CLASSES)

    def block(x):
        mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
        n = (x - mean) * jax.lax.rsqrt(variance + 1e-5) * gamma + beta
        x = x + 0.5 * (jax.nn.gelu(n @ enters + bias) @ leaves)
        n = x / jnp.sqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * (1 + scale)
        return n @ head

    return to_onnx(block, [("B", TOKENS, WIDTH)])


def flax():
    """LayerNorm, Linear, Conv and BatchNorm of Flax, by jax2onnx."""
    import jax
    from flax import nnx
    from jax2onnx import to_onnx

    class Block(nnx.Module):
        def __init__(self, rngs):
            self.norm, self.out = nnx.LayerNorm(WIDTH, rngs=rngs), nnx.Linear(WIDTH, CLASSES, rngs=rngs)
            self.inner = nnx.Linear(WIDTH, WIDTH, rngs=rngs)
            self.batch = nnx.BatchNorm(WIDTH, use_running_average=True, rngs=rngs)

        def __call__(self, x):
            x = x + jax.nn.relu(self.inner(self.norm(x)))
            return self.out(self.batch(x))

    block = Block(nnx.Rngs(0))
    draw = numbers()
    for norm in (block.norm, block.batch):
        norm.scale.value, norm.bias.value = 1 + draw(WIDTH), draw(WIDTH)
    block.batch.mean.value, block.batch.var.value = draw(WIDTH), np.exp(draw(WIDTH))
    return to_onnx(block, [("B", TOKENS, WIDTH)])


def onnxscript():
    """A function of its own for a normalizer, by onnxscript."""
    import onnxscript
    from onnxscript import FLOAT, opset18 as op, script

    domain = onnxscript.values.Opset("wild.layers", 1)

    @script(domain)
    def LayerNorm(x, gamma, beta):
        axes = op.Constant(value_ints=[-1])
        centred = x - op.ReduceMean(x, axes)
        variance = op.ReduceMean(centred * centred, axes)
        return centred / op.Sqrt(variance + op.Constant(value_float=1e-5)) * gamma + beta

    draw = numbers()
    tensors = {"gamma": draw(WIDTH), "beta": draw(WIDTH), "weight": draw(WIDTH, HIDDEN), "head": draw(HIDDEN, CLASSES)}
    gamma, beta, weight, head = (onnx.numpy_helper.from_array(value, name) for name, value in tensors.items())

    @script(default_opset=op)
    def block(x):
        g, b = op.Constant(value=gamma), op.Constant(value=beta)
        n = LayerNorm(x, g, b)
        h = op.Relu(op.MatMul(n, op.Constant(value=weight)))
        return op.MatMul(h * 0.25, op.Constant(value=head))

    types = [[FLOAT["B", TOKENS, width]] for width in (WIDTH, CLASSES)]
    return block.to_model_proto(input_types=types[0], output_types=types[1])


WRITERS = {writer.__name__: writer for writer in (sklearn, jax, flax, onnxscript)}


def main():
    FOLDER.mkdir(exist_ok=True)
    for name in sys.argv[1:] or WRITERS:
        path = FOLDER / f"{name}.onnx"
        onnx.save(WRITERS[name](), path)
        onnx.checker.check_model(str(path))
        print(f"{path.name}: {path.stat().st_size / 1e3:.1f} kB")


if __name__ == "__main__":
    main()
