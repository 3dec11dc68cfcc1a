"""Number formats of keys and values in the cache."""

from __future__ import annotations

from dataclasses import dataclass

from inflightd.daemon.errors import ConfigError


@dataclass(frozen=True, slots=True)
class KvDtype:
    """`group_values` values take `group_bytes` bytes; scales that an engine keeps elsewhere are not counted."""

    name: str
    group_bytes: int
    group_values: int = 1

    def row_bytes(self, values: int) -> int:
        """Bytes of one row (the keys, or the values, of one token in one layer); a group never spans two rows."""
        return -(-values // self.group_values) * self.group_bytes


F32 = KvDtype("f32", 4)
BF16 = KvDtype("bf16", 2)
F16 = KvDtype("fp16", 2)
FP8 = KvDtype("fp8", 1)
INT8 = KvDtype("int8", 1)
U8 = KvDtype("u8", 1)
Q8_0 = KvDtype("q8_0", 34, 32)  # GGUF: 32 one-byte values and an fp16 scale

KV_DTYPES = {dtype.name: dtype for dtype in (F32, BF16, F16, FP8, INT8, U8, Q8_0)}
_OTHER_NAMES = {"float32": F32, "bfloat16": BF16, "float16": F16, "f16": F16, "uint8": U8}


def kv_dtype(name: str) -> KvDtype:
    """The format of that name; ConfigError lists the known ones."""
    dtype = KV_DTYPES.get(name.lower()) or _OTHER_NAMES.get(name.lower())
    if dtype is None:
        raise ConfigError("kv_dtype", name, f"not one of {', '.join(KV_DTYPES)}")
    return dtype
