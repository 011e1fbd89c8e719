"""The kinds of models that are taken, and given back as they were."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Union

from unfold_onnx._native import Source, Wire

if TYPE_CHECKING:
    import onnx
    import onnx_ir
    from typing_extensions import TypeAlias, TypeGuard

StrPath = Union[str, "os.PathLike[str]"]
Buffer = Union[bytes, bytearray, memoryview]
AnyModel: TypeAlias = "Union[onnx.ModelProto, onnx_ir.Model, bytes, bytearray, memoryview, str, os.PathLike[str]]"
"""What a model may be: a message, an intermediate representation, the bytes of a file, or its path."""
Resolver = Union[StrPath, "Callable[[str, int, int], Buffer]"]
"""Where a model in memory has its external data: in a folder, or with whoever answers ``(location, offset, length)``."""

Given = TypeVar("Given")

HEAVY = ("GraphProto", "TensorProto")
"""The messages that are written field by field, since they may have many weights."""
MUCH = 1 << 22
"""Bytes of what a usual model has beside its weights."""


@dataclass(frozen=True)
class Kind(Generic[Given]):
    """How models of one kind come back."""

    same: Callable[[], Given]
    """The model as it was."""
    made: Callable[[bytes], Given]
    """A model of the same kind."""


def opened(model: Any, allow_external: Sequence[StrPath], resolver: Resolver | None) -> tuple[Source, Kind[Any]]:
    """Takes a model of any kind, as the extension wants it."""
    if _is_path(model):
        if resolver is not None:
            raise TypeError("a model with a path has its external data beside it: see allow_external")
        path = Path(model)
        return Source.file(path, list(allow_external)), Kind(path.read_bytes, bytes)
    if allow_external:
        raise TypeError("allow_external is for models with a path: see resolver")
    if _is_buffer(model):
        # What others may write into while it is read is copied.
        data = model if isinstance(model, bytes) else bytes(model)
        return Source.memory(data, *_outside(resolver)), Kind(lambda: data, bytes)
    if _is(model, "onnx", "ModelProto"):
        return _message(model, resolver)
    if _is(model, "onnx_ir", "Model"):
        return _representation(model, resolver)
    raise TypeError(f"{type(model).__name__} is no model: give a path, bytes, an onnx.ModelProto or an onnx_ir.Model")


def _is_path(model: Any) -> TypeGuard[StrPath]:
    return isinstance(model, (str, os.PathLike))


def _is_buffer(model: Any) -> TypeGuard[Buffer]:
    return isinstance(model, (bytes, bytearray, memoryview))


def _outside(resolver: Resolver | None) -> tuple[StrPath | None, Callable[[str, int, int], Buffer] | None]:
    return (None, resolver) if callable(resolver) else (resolver, None)


def _is(model: object, module: str, name: str) -> bool:
    """Whether it is of a class; where nobody imported the module, nothing is."""
    loaded = sys.modules.get(module)
    return loaded is not None and isinstance(model, getattr(loaded, name))


def _message(model: onnx.ModelProto, resolver: Resolver | None) -> tuple[Source, Kind[onnx.ModelProto]]:
    def copy() -> onnx.ModelProto:
        other = type(model)()
        other.CopyFrom(model)
        return other

    return _written(model, resolver), Kind(copy, type(model).FromString)


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
    message = type(proto)
    source = _written(proto, resolver)
    return source, Kind(lambda: read(onnx_ir.to_proto(model)), lambda data: read(message.FromString(data)))


def _written(message: onnx.ModelProto, resolver: Resolver | None) -> Source:
    """Writes a message as it would be serialized, without room for all of it twice.

    Neither ``SerializeToString`` nor ``ByteSize``, which serializes, is asked of what has many weights.
    """
    elements = sum(map(_room, message.graph.initializer))
    # Room that is not needed is never touched.
    wire = Wire(elements + elements // 4 + MUCH)
    _write(message, wire)
    return wire.source(*_outside(resolver))


def _room(tensor: onnx.TensorProto) -> int:
    """About as many bytes as its elements take."""
    wide = tensor.data_type in (tensor.INT64, tensor.UINT64, tensor.DOUBLE)
    return 0 if tensor.data_location == tensor.EXTERNAL else math.prod(tensor.dims) * (8 if wide else 4)


def _write(message: Any, wire: Wire) -> None:
    from google.protobuf.unknown_fields import UnknownFieldSet

    if len(UnknownFieldSet(message)) > 0:
        # They are refused with their names, like those of a file, if they are there.
        wire.put(message.SerializeToString())
        return
    for field, value in message.ListFields():
        key = _varint(field.number << 3 | 2)
        if field.type == field.TYPE_BYTES and isinstance(value, bytes):
            wire.put(key + _varint(len(value)))
            wire.put(value)
        elif field.message_type is None:
            # Numbers and texts, as a message that has nothing else writes them.
            alone = type(message)()
            if isinstance(value, (int, float, str)):
                setattr(alone, field.name, value)
            else:
                getattr(alone, field.name).extend(value)
            wire.put(alone.SerializeToString())
        else:
            for part in [value] if hasattr(value, "ListFields") else value:
                wire.put(key)
                begin = len(wire)
                if field.message_type.name in HEAVY:
                    _write(part, wire)
                else:
                    wire.put(part.SerializeToString())
                wire.close(begin)


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)
