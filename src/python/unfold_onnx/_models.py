"""Reads models of several kinds, and converts results back to the same kind."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, Union

from unfold_onnx._native import Folded, Source, Wire

if TYPE_CHECKING:
    import onnx
    import onnx_ir
    from typing_extensions import TypeAlias, TypeGuard


class Program(Protocol):
    """A ``torch.onnx.ONNXProgram``, as ``torch.onnx.export(..., dynamo=True)`` returns it."""

    model: onnx_ir.Model

    @property
    def exported_program(self) -> Any: ...


class Script(Protocol):
    """An ``onnxscript.OnnxFunction``, as the decorator ``onnxscript.script()`` returns it."""

    def to_model_proto(self) -> onnx.ModelProto: ...


StrPath = Union[str, "os.PathLike[str]"]
Buffer = Union[bytes, bytearray, memoryview]
AnyModel: TypeAlias = (
    "Union[onnx.ModelProto, onnx_ir.Model, Program, Script, bytes, bytearray, memoryview, str, os.PathLike[str]]"
)
"""A model: a message, an intermediate representation, a program of PyTorch's exporter, a function of ONNX Script, the
bytes of a file, or its path."""
Resolver = Union[StrPath, "Callable[[str, int, int], Buffer]"]
"""The external data of a model in memory: a folder, or a function of ``(location, offset, length)``."""

Given = TypeVar("Given")

HEAVY = ("GraphProto", "TensorProto")
"""The messages that are written field by field, because they may have many weights."""
LARGE = 1 << 12
"""The minimum number of bytes of elements that stay in their message."""
PART = 1 << 22
"""The number of bytes of a result that are passed at a time."""


@dataclass(frozen=True)
class Kind(Generic[Given]):
    """The conversions to models of one kind."""

    same: Callable[[], Given]
    """Returns the original model."""
    made: Callable[[Folded], Given]
    """Converts the result to a model of the same kind."""


def opened(model: Any, allow_external: Sequence[StrPath], resolver: Resolver | None) -> tuple[Source, Kind[Any]]:
    """Converts a model of any kind to a source for the extension."""
    if _is_path(model):
        if resolver is not None:
            raise TypeError("a model with a path has its external data beside it: see allow_external")
        for folder in allow_external:
            if not os.path.isdir(folder):
                raise ValueError(f"allow_external: there is no folder {os.fspath(folder)}")
        path = Path(model)
        return Source.file(path, list(allow_external)), Kind(path.read_bytes, Folded.to_bytes)
    if allow_external:
        raise TypeError("allow_external is for models with a path: see resolver")
    if _is_buffer(model):
        # Mutable buffers are copied, since other code may change them while they are read.
        data = model if isinstance(model, bytes) else bytes(model)
        return Source.memory(data, *_outside(resolver)), Kind(lambda: data, Folded.to_bytes)
    if _is(model, "onnx", "ModelProto"):
        return _message(model, resolver)
    if _is(model, "onnx_ir", "Model"):
        return _representation(model, resolver)
    if _is(model, "torch.onnx", "ONNXProgram"):
        return _program(model, resolver)
    if _is(model, "onnxscript", "OnnxFunction"):
        return _message(model.to_model_proto(), resolver)
    raise TypeError(
        f"{type(model).__name__} is no model: give a path, bytes, an onnx.ModelProto, an onnx_ir.Model, a "
        "torch.onnx.ONNXProgram or an onnxscript.OnnxFunction"
    )


def _is_path(model: Any) -> TypeGuard[StrPath]:
    return isinstance(model, (str, os.PathLike))


def _is_buffer(model: Any) -> TypeGuard[Buffer]:
    return isinstance(model, (bytes, bytearray, memoryview))


def _outside(resolver: Resolver | None) -> tuple[StrPath | None, Callable[[str, int, int], Buffer] | None]:
    return (None, resolver) if callable(resolver) else (resolver, None)


def _is(model: object, module: str, name: str) -> bool:
    """Whether a value is an instance of a class; false if its module is not imported."""
    loaded = sys.modules.get(module)
    return loaded is not None and isinstance(model, getattr(loaded, name))


def _message(model: onnx.ModelProto, resolver: Resolver | None) -> tuple[Source, Kind[onnx.ModelProto]]:
    def copy() -> onnx.ModelProto:
        other = type(model)()
        other.CopyFrom(model)
        return other

    return _written(model, resolver), Kind(copy, lambda folded: _merged(folded, type(model)()))


def _representation(model: onnx_ir.Model, resolver: Resolver | None) -> tuple[Source, Kind[onnx_ir.Model]]:
    import onnx_ir

    values = [value for graph in model.graphs() for value in graph.initializers.values()]
    tensors = [value.const_value for value in values]
    folders = {str(tensor.base_dir) for tensor in tensors if isinstance(tensor, onnx_ir.ExternalTensor)}  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
    if resolver is None and len(folders) == 1:
        resolver = folders.pop()

    def read(proto: onnx.ModelProto) -> onnx_ir.Model:
        other = onnx_ir.from_proto(proto)
        if resolver is not None and not callable(resolver):
            onnx_ir.external_data.set_base_dir(other.graph, resolver)  # pyright: ignore[reportUnknownMemberType]
        return other

    proto = onnx_ir.to_proto(model)
    source = _written(proto, resolver)
    return source, Kind(
        lambda: read(onnx_ir.to_proto(model)), lambda folded: read(_merged(folded, type(proto)()))
    )


def _program(program: Program, resolver: Resolver | None) -> tuple[Source, Kind[Program]]:
    source, kind = _representation(program.model, resolver)

    def around(model: onnx_ir.Model) -> Program:
        new: Any = type(program)
        made: Program = new(model, program.exported_program)
        return made

    return source, Kind(lambda: around(kind.same()), lambda folded: around(kind.made(folded)))


def _merged(folded: Folded, message: onnx.ModelProto) -> onnx.ModelProto:
    """Merges the parts of a result into a message, without two full copies in memory."""
    for part in folded.parts(PART):
        message.MergeFromString(part)
        # Dropped before the next part is built.
        del part
    return message


def _written(message: onnx.ModelProto, resolver: Resolver | None) -> Source:
    """Serializes a message, except for its weights, which are read from the message later.

    Neither ``SerializeToString`` nor ``ByteSize`` is called on messages with many weights, because both serialize them.
    """
    wire = Wire()
    _write(message, wire)
    return wire.source(*_outside(resolver))


def _write(message: Any, wire: Wire) -> None:
    from google.protobuf.unknown_fields import UnknownFieldSet

    if len(UnknownFieldSet(message)) > 0:
        # Unknown fields are refused by name, like those of a file.
        wire.put(message.SerializeToString())
        return
    for field, value in message.ListFields():
        key = _varint(field.number << 3 | 2)
        if field.type == field.TYPE_BYTES and isinstance(value, bytes):
            wire.put(key + _varint(len(value)))
            if len(value) < LARGE:
                wire.put(value)
            else:
                wire.refer(message, field.name, len(value))
        elif field.message_type is None:
            # Scalars and strings, serialized in a message without other fields.
            alone = type(message)()
            if isinstance(value, (int, float, str)):
                setattr(alone, field.name, value)
            else:
                getattr(alone, field.name).extend(value)
            wire.put(alone.SerializeToString())
        else:
            for part in [value] if hasattr(value, "ListFields") else value:
                if field.message_type.name in HEAVY:
                    wire.put(key)
                    begun = wire.begin()
                    _write(part, wire)
                    wire.close(begun)
                else:
                    data = part.SerializeToString()
                    wire.put(key + _varint(len(data)) + data)


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)
