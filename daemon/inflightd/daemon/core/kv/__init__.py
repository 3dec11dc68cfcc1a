"""The paged KV cache: who holds which blocks, what would fit, and how much memory it takes."""

from inflightd.daemon.core.kv.budget import concurrency, kv_bytes, kv_bytes_per_token, packed_latent_bytes_per_token
from inflightd.daemon.core.kv.dtypes import KvDtype, kv_dtype
from inflightd.daemon.core.kv.figures import KvFigures
from inflightd.daemon.core.kv.fit import CacheFit, check_fit
from inflightd.daemon.core.kv.host_pool import HostPool
from inflightd.daemon.core.kv.ledger import KvLedger
from inflightd.daemon.core.kv.manager import NO_COPIES, Copies, KvManager
from inflightd.daemon.core.kv.model_config import ModelShape, shape_from_gguf, shape_from_hf
from inflightd.daemon.core.kv.pool import BlockPool
from inflightd.daemon.core.kv.prefix import PrefixCache
from inflightd.daemon.core.kv.sizes import parse_size, show_size
from inflightd.daemon.core.kv.table import BlockTable, blocks_for, tokens_in_last_block
from inflightd.daemon.core.kv.view import KvPoolView

__all__ = [
    "NO_COPIES",
    "BlockPool",
    "BlockTable",
    "CacheFit",
    "Copies",
    "HostPool",
    "KvDtype",
    "KvFigures",
    "KvLedger",
    "KvManager",
    "KvPoolView",
    "ModelShape",
    "PrefixCache",
    "blocks_for",
    "check_fit",
    "concurrency",
    "kv_bytes",
    "kv_bytes_per_token",
    "kv_dtype",
    "packed_latent_bytes_per_token",
    "parse_size",
    "shape_from_gguf",
    "shape_from_hf",
    "show_size",
    "tokens_in_last_block",
]
