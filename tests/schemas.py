"""Writes src/onnx/schema/operators.txt with the operators of ONNX, as the `onnx` package defines them.

    python tests/schemas.py > src/onnx/schema/operators.txt

There is one line for each operator and each version of the operator set that changed its definition:

    name|since|inputs|outputs|type variables|attributes

An input or output is `$T` (a type variable), a set of element types in hexadecimal (bit n is the element type n of
TensorProto.DataType), or `-` (not a tensor). The prefix `?` means that it is optional, `*` that there may be any number
of them, and `%` that these may have different types. An attribute is `name=type`, with the prefix `!` if it is
required. The type is one of f i s t g and, for lists, F I S T G. `:` and the default follow the type if there is a
default, except for tensors and graphs. A deprecated operator has `deprecated` instead of its inputs.
"""
import onnx

LETTERS = {"FLOAT": "f", "INT": "i", "STRING": "s", "TENSOR": "t", "GRAPH": "g", "FLOATS": "F", "INTS": "I", "STRINGS": "S",
           "TENSORS": "T", "GRAPHS": "G", "SPARSE_TENSOR": "p", "SPARSE_TENSORS": "P", "TYPE_PROTO": "y", "TYPE_PROTOS": "Y"}
CODES = {name.lower(): code for name, code in onnx.TensorProto.DataType.items()}


def mask(types):
    """The set of element types, or `-` if one is not a tensor."""
    if not all(t.startswith("tensor(") for t in types):
        return "-"
    return format(sum(1 << CODES[t[7:-1]] for t in types), "x")


def formal(p, variables):
    optional, variadic = p.option.name == "Optional", p.option.name == "Variadic"
    sort = f"${p.type_str}" if p.type_str in variables else mask(p.types)
    return ("?" if optional else ("*" if p.is_homogeneous else "%") if variadic else "") + sort


def default(attribute):
    """The default after a colon, or nothing. Defaults are numbers and texts without spaces."""
    value = attribute.default_value
    if attribute.required or value.type == onnx.AttributeProto.UNDEFINED:
        return ""
    value = onnx.helper.get_attribute_value(value)
    if isinstance(value, bytes):
        return f":{value.decode()}"
    if isinstance(value, (int, float)):
        return f":{value!r}"
    if all(isinstance(item, (int, float)) for item in value):
        return ":" + ",".join(repr(item) for item in value)
    return ""


def main():
    schemas = [s for s in onnx.defs.get_all_schemas_with_history() if s.domain == ""]
    for s in sorted(schemas, key=lambda s: (s.name, s.since_version)):
        if s.deprecated:
            print(f"{s.name}|{s.since_version}|deprecated|||")
            continue
        variables = {c.type_param_str: mask(c.allowed_type_strs) for c in s.type_constraints}
        inputs, outputs = (" ".join(formal(p, variables) for p in ps) for ps in (s.inputs, s.outputs))
        named = " ".join(f"{name}:{types}" for name, types in variables.items())
        attributes = " ".join(f"{'!' * a.required}{a.name}={LETTERS[a.type.name]}{default(a)}" for a in s.attributes.values())
        print(f"{s.name}|{s.since_version}|{inputs}|{outputs}|{named}|{attributes}")


if __name__ == "__main__":
    main()
