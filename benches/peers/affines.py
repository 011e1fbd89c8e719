"""Counts the constant affines of a model.

These are Mul, Add, Sub and Div of floats with one constant of any shape, BatchNormalization, and the parameters of
normalizers other than 1 and 0, whether a normalizer is one operator or several. These do not count: a bias directly
after a product, the ε below a root, the constants inside an activation `x·f(x)`, and the scales of quantized numbers,
by which a product of integers is multiplied.
"""

import onnx
from onnx import TensorProto, numpy_helper

FLOATS = {TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BFLOAT16}
ARITHMETIC = {"Add", "Sub", "Mul", "Div"}
MOVEMENT = {"Cast", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"}
PRODUCTS = {"Conv", "ConvTranspose", "Einsum", "FusedMatMul", "Gemm", "MatMul"}
INTEGER = {"ConvInteger", "MatMulInteger"}
# The index of the scale input of each normalizer. The shift is the next input.
NORMALIZERS = {"GroupNormalization": 1, "InstanceNormalization": 1, "LayerNormalization": 1, "RMSNormalization": 1}
NORMALIZERS |= {"SimplifiedLayerNormalization": 1, "SkipLayerNormalization": 2, "EmbedLayerNormalization": 5}
BENDS = {"Clip", "Erf", "HardSigmoid", "Max", "Min", "Pow", "Relu", "Sigmoid", "Softplus", "Tanh"}


class Graph:
    def __init__(self, model):
        self.nodes = model.graph.node
        inferred = onnx.shape_inference.infer_shapes(model).graph
        values = [*inferred.value_info, *inferred.input, *inferred.output]
        self.types = {value.name: value.type.tensor_type.elem_type for value in values}
        self.constants = {tensor.name: tensor for tensor in model.graph.initializer}
        self.producers, self.readers = {}, {}
        for node in self.nodes:
            known = all(not name or name in self.constants for name in node.input)
            for name in node.output:
                self.producers[name] = node
                if known and (node.input or node.op_type == "Constant"):
                    value = [attribute.t for attribute in node.attribute if attribute.name == "value"]
                    self.constants[name] = value[0] if value else None
            for name in node.input:
                self.readers.setdefault(name, []).append(node)

    def varying(self, node):
        return [name for name in node.input if name and name not in self.constants]

    def array(self, name):
        tensor = self.constants.get(name)
        return None if tensor is None else numpy_helper.to_array(tensor)

    def is_float(self, node):
        names = [*node.output, *node.input]
        types = [self.types.get(name) or getattr(self.constants.get(name), "data_type", 0) for name in names]
        return any(kind in FLOATS for kind in types)

    def gate(self, name, start, depth=12):
        """The nodes from one value to another. `None` if one of them is not element-wise."""
        if name == start or name in self.constants:
            return []
        node = self.producers.get(name)
        if depth == 0 or node is None or node.op_type not in ARITHMETIC | BENDS:
            return None
        parts = [self.gate(given, start, depth - 1) for given in self.varying(node)]
        return None if None in parts else [node, *(inner for part in parts for inner in part)]

    def activation(self, node):
        """The nodes of the activation `x·f(x)` whose product is this node. Empty if there is no such activation."""
        if node.op_type != "Mul" or len(self.varying(node)) != 2:
            return []
        for plain, other in (node.input, reversed(node.input)):
            maker = self.producers.get(plain)
            scaled = self.varying(maker) if maker is not None and maker.op_type in ("Mul", "Div") else []
            for start in [plain, *(scaled if len(scaled) == 1 else [])]:
                nodes = self.gate(other, start)
                if nodes and any(inner.op_type in BENDS for inner in nodes):
                    behind = [reader for reader in self.readers.get(node.output[0], []) if self.halves(reader)]
                    return nodes + behind + ([maker] if start != plain else [])
        return []

    def halves(self, node):
        numbers = [self.array(name) for name in node.input if name in self.constants]
        factor = {"Mul": 0.5, "Div": 2.0}.get(node.op_type)
        return any(array is not None and array.size == 1 and float(array.ravel()[0]) == factor for array in numbers)

    def is_neutral(self, node):
        """Whether a node multiplies by ones or adds zeros, as in a normalizer whose parameters are folded."""
        numbers = [self.array(name) for name in node.input if name in self.constants]
        neutral = {"Mul": 1, "Add": 0}.get(node.op_type)
        return any(array is not None and array.ndim == 1 < array.size and (array == neutral).all() for array in numbers)

    def origin(self, name):
        """The node that computes a value. Movements and casts after it are skipped."""
        maker = self.producers.get(name)
        while maker is not None and maker.op_type in MOVEMENT:
            maker = self.producers.get(maker.input[0])
        return maker

    def is_bias(self, node):
        maker = self.origin(self.varying(node)[0])
        if maker is None or node.op_type != "Add":
            return False
        made = [self.origin(name) for name in maker.input] if maker.op_type == "Mul" else []
        return maker.op_type in PRODUCTS or any(inner is not None and inner.op_type in INTEGER for inner in made)

    def is_quantizing(self, node):
        maker = self.producers.get(self.varying(node)[0])
        return maker is not None and maker.op_type == "DynamicQuantizeLinear"

    def is_epsilon(self, node):
        return any(reader.op_type in ("Sqrt", "Pow", "Reciprocal") for reader in self.readers.get(node.output[0], []))

    def affines(self):
        inside = {id(inner) for node in self.nodes for inner in self.activation(node)}
        return sum(self.is_affine(node) for node in self.nodes if id(node) not in inside)

    def is_affine(self, node):
        if node.op_type in NORMALIZERS:
            first = NORMALIZERS[node.op_type]
            parameters = [self.array(name) for name in node.input[first : first + 2]]
            neutral = zip(parameters, (1, 0))
            return any(array is not None and (array != number).any() for array, number in neutral)
        if node.op_type == "BatchNormalization":
            return True
        if self.is_neutral(node):
            return False
        by_constant = node.op_type in ARITHMETIC and len(self.varying(node)) == 1
        divides = node.op_type == "Div" and node.input[0] in self.constants
        if not by_constant or divides or not self.is_float(node):
            return False
        if self.is_bias(node) or self.is_quantizing(node):
            return False
        return not (node.op_type == "Add" and self.is_epsilon(node))
