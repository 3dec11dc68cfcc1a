"""Messages of any type, drawn field by field from its descriptor, and bytes that are almost one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import strategies as st

# Of a field that takes text: what may stand in it.
Texts = Callable[[FieldDescriptor], st.SearchStrategy[str]]

_MAX_DEPTH = 4
_EDGES = (0, 1, 2, 7, 255, 256, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1, -1, -(2**31), -(2**63))
_RANGES = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}
_FLOATS = st.sampled_from((0.0, -0.0, 0.5, 1.0, 2.0, -1.0, 1e30, 1e-30, float("nan"), float("inf"), float("-inf")))


@st.composite
def messages(draw: st.DrawFn, descriptor: Descriptor, texts: Texts, depth: int = 0) -> Message:
    """Every field present or not; lists and maps of up to four."""
    message = GetMessageClass(descriptor)()
    for field in descriptor.fields:
        if not draw(st.booleans()) or depth == _MAX_DEPTH:
            continue
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
            for _ in range(draw(st.integers(1, 4))):
                getattr(message, field.name)[draw(_scalar(key, texts))] = draw(_scalar(value, texts))
        elif field.is_repeated:
            for _ in range(draw(st.integers(1, 4))):
                if field.message_type is not None:
                    part = draw(messages(field.message_type, texts, depth + 1))
                    getattr(message, field.name).add().CopyFrom(part)
                else:
                    getattr(message, field.name).append(draw(_scalar(field, texts)))
        elif field.message_type is not None:
            getattr(message, field.name).CopyFrom(draw(messages(field.message_type, texts, depth + 1)))
        else:
            setattr(message, field.name, draw(_scalar(field, texts)))
    return message


def _scalar(field: FieldDescriptor, texts: Texts) -> st.SearchStrategy[Any]:
    kind = field.cpp_type
    if kind in _RANGES:
        low, high = _RANGES[kind]
        small = st.integers(0, 300)
        return st.one_of(small, st.sampled_from([edge for edge in _EDGES if low <= edge <= high]))
    if kind in (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE):
        return _FLOATS
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        return st.booleans()
    if field.enum_type is not None:
        return st.sampled_from([value.number for value in field.enum_type.values])
    if field.type == FieldDescriptor.TYPE_BYTES:
        return st.binary(max_size=40)
    return texts(field)


@st.composite
def almost(draw: st.DrawFn, whole: st.SearchStrategy[Message]) -> bytes:
    """The bytes of a message, as they are or with some changed, cut off, put in or said twice."""
    data = bytearray(draw(whole).SerializeToString())
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(data)))
        match draw(st.sampled_from(("change", "cut", "insert", "twice"))):
            case "change" if at < len(data):
                data[at] = draw(st.integers(0, 255))
            case "cut":
                del data[at : at + draw(st.integers(1, 8))]
            case "insert":
                data[at:at] = draw(st.binary(min_size=1, max_size=8))
            case "twice":
                data += data[:at][:4096]
    return bytes(data)
