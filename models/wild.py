"""Writes the files of `tests/wild`: small models by other exporters than PyTorch's.

    pip install -r models/wild.txt
    python models/wild.py

TensorFlow, Keras and Paddle want environments of their own: `wild-tensorflow.txt`, `wild-keras.txt`, `wild-paddle.txt`, each
with the name of its writer as argument.

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


def scalers():
    """Two StandardScalers with a PCA between them, and a perceptron, by skl2onnx."""
    from sklearn.decomposition import PCA
    from sklearn.neural_network import MLPRegressor
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler
    from skl2onnx import to_onnx

    random = np.random.default_rng(0)
    samples = (random.normal(1, 3, (200, 8)) * random.uniform(0.5, 4, 8)).astype(np.float32)
    perceptron = MLPRegressor(hidden_layer_sizes=(12,), max_iter=30, random_state=0)
    pipeline = make_pipeline(StandardScaler(), PCA(4), StandardScaler(), perceptron).fit(samples, samples.sum(1))
    return to_onnx(pipeline, samples[:1])


def tensorflow():
    """LayerNorm of `tf.nn`, whose means tf2onnx writes as poolings."""
    import tensorflow as tf
    import tf2onnx

    draw = numbers()
    enters, leaves, gamma, beta = draw(WIDTH // 2, WIDTH), draw(WIDTH, CLASSES), 1 + draw(WIDTH), draw(WIDTH)
    signature = [tf.TensorSpec([None, TOKENS, WIDTH // 2])]

    @tf.function(input_signature=signature)
    def block(x):
        x = tf.einsum("btc,cd->btd", x, enters)
        mean, variance = tf.nn.moments(x, [-1], keepdims=True)
        return tf.einsum("btc,cd->btd", tf.nn.batch_normalization(x, mean, variance, beta, gamma, 1e-6), leaves)

    return tf2onnx.convert.from_function(block, input_signature=signature, opset=13)[0]


def keras():
    """BatchNormalization and Dense of Keras on PyTorch, with a Cast to the type that is there in front of each bias."""
    import os
    import tempfile

    os.environ["KERAS_BACKEND"] = "torch"
    from keras import Input, Model, layers

    x = y = Input((8,))
    steps = [layers.BatchNormalization(), layers.Dense(16), layers.BatchNormalization(), layers.ReLU(), layers.Dense(5)]
    for step in steps:
        y = step(y)
    model, draw = Model(x, y), numbers()
    model(np.zeros((2, 8), np.float32))
    for weight in model.weights:
        value = draw(*weight.shape)
        weight.assign(np.exp(value) if "variance" in weight.path else value)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.onnx")
        model.export(path, format="onnx", verbose=False)
        return onnx.load(path)


def paddle():
    """A post-norm stream with UN, with an Identity behind each operator, by paddle2onnx."""
    import os
    import tempfile

    import paddle
    from paddle import nn

    class UN(nn.Layer):
        def __init__(self):
            super().__init__()
            self.gamma, self.beta = self.create_parameter([8]), self.create_parameter([8])
            self.register_buffer("variance", paddle.ones([8]))

        def forward(self, x):
            return x / paddle.sqrt(self.variance + 1e-5) * self.gamma + self.beta

    class Block(nn.Layer):
        def __init__(self):
            super().__init__()
            self.enters, self.leaves, self.norm = nn.Linear(8, 16), nn.Linear(16, 8), UN()

        def forward(self, x):
            return self.norm(x + self.leaves(nn.functional.relu(self.enters(x))))

    model, draw = nn.Sequential(nn.Linear(8, 8), Block(), Block(), nn.Linear(8, 3)), numbers()
    for name, weight in model.state_dict().items():
        value = draw(*weight.shape)
        weight.set_value(np.exp(value) if "variance" in name or "gamma" in name else value)
    model.eval()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model")
        given = [paddle.static.InputSpec([None, 8], "float32", "x")]
        paddle.onnx.export(model, path, input_spec=given, opset_version=13)
        return onnx.load(f"{path}.onnx")


OF_ONE_ENVIRONMENT = (sklearn, scalers, jax, flax, onnxscript)
WRITERS = {writer.__name__: writer for writer in (*OF_ONE_ENVIRONMENT, tensorflow, keras, paddle)}


def main():
    FOLDER.mkdir(exist_ok=True)
    for name in sys.argv[1:] or [writer.__name__ for writer in OF_ONE_ENVIRONMENT]:
        path = FOLDER / f"{name}.onnx"
        onnx.save(WRITERS[name](), path)
        onnx.checker.check_model(str(path))
        print(f"{path.name}: {path.stat().st_size / 1e3:.1f} kB")


if __name__ == "__main__":
    main()
