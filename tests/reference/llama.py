"""A Llama forward pass in plain float32 NumPy: no cache, no batch, no tricks.

Written apart from the engine on purpose.  It reads each tensor of the GGUF by itself, leaves q and k in the order the
file has them, and therefore rotates neighbouring pairs (2i, 2i + 1), where the engine reorders the rows first and
rotates halves.  Only the rounding is shared by decision: quantized matrices are rounded to float16.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, dequantize
from numpy.typing import NDArray

from inflightd.daemon.models.gguf_file import read_gguf

F32 = NDArray[np.float32]


class ReferenceLlama:
    def __init__(self, path: Path) -> None:
        self._gguf = read_gguf(path)
        self._tensors = {name: self._tensor(name) for name in self._gguf.tensors}

    def _tensor(self, name: str) -> F32:
        info = self._gguf.tensors[name]
        values = np.asarray(dequantize(self._gguf.map_tensor(name), GGMLQuantizationType(info.type_id)), np.float32)
        if len(info.shape) > 1 and info.type_name != "F32":
            values = values.astype(np.float16).astype(np.float32)
        return values.reshape(info.shape)

    def logits(self, token_ids: Sequence[int]) -> F32:
        """[T] ids -> [T, V]: row t is the distribution of the token after token_ids[: t + 1]."""
        model, tensors = self._gguf.model, self._tensors
        x = tensors["token_embd.weight"][list(token_ids)]
        for layer in range(model.layers):
            name = f"blk.{layer}."
            h = self._rms(x, tensors[name + "attn_norm.weight"])
            x = x + self._attention(h, name) @ tensors[name + "attn_output.weight"].T
            h = self._rms(x, tensors[name + "ffn_norm.weight"])
            gate, up = h @ tensors[name + "ffn_gate.weight"].T, h @ tensors[name + "ffn_up.weight"].T
            x = x + (gate / (1 + np.exp(-gate)) * up) @ tensors[name + "ffn_down.weight"].T
        head = tensors.get("output.weight", tensors["token_embd.weight"])
        return self._rms(x, tensors["output_norm.weight"]) @ head.T

    def logprobs(self, token_ids: Sequence[int]) -> NDArray[np.float64]:
        """[T, V] natural logarithms of the probabilities."""
        logits = self.logits(token_ids).astype(np.float64)
        logits -= logits.max(axis=1, keepdims=True)
        return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))

    def greedy_after(self, prompt: Sequence[int], generated: Sequence[int]) -> list[int]:
        """What greedy decoding picks at each place of `generated`, given what stands before it.

        If that is `generated` itself, then free-running greedy decoding with full recomputation gives it too, by
        induction over the places: one pass does the work of len(generated).
        """
        logits = self.logits([*prompt, *generated])
        return [int(token) for token in logits[len(prompt) - 1 : -1].argmax(axis=1)]

    def _rms(self, x: F32, weight: F32) -> F32:
        return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + np.float32(self._gguf.model.rms_eps)) * weight

    def _attention(self, h: F32, name: str) -> F32:
        model = self._gguf.model
        length = len(h)

        def heads(kind: str, count: int) -> Any:
            projected = h @ self._tensors[f"{name}attn_{kind}.weight"].T
            return projected.reshape(length, count, model.head_dim).swapaxes(0, 1)

        q, k, v = heads("q", model.heads), heads("k", model.kv_heads), heads("v", model.kv_heads)
        q, k = self._rotated(q), self._rotated(k)
        group = model.heads // model.kv_heads
        k, v = k.repeat(group, axis=0), v.repeat(group, axis=0)
        scores = q @ k.swapaxes(1, 2) / np.float32(np.sqrt(model.head_dim))
        scores = np.where(np.tri(length, dtype=bool), scores, -np.inf)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        attended = weights / weights.sum(axis=-1, keepdims=True) @ v
        return attended.swapaxes(0, 1).reshape(length, -1)

    def _rotated(self, x: F32) -> F32:
        """Turns each pair (2i, 2i + 1) of a head at position t by t / base ** (2i / head_dim)."""
        model = self._gguf.model
        frequency = model.rope_base ** (-np.arange(0, model.head_dim, 2) / model.head_dim)
        if "rope_freqs.weight" in self._tensors:
            frequency = frequency / self._tensors["rope_freqs.weight"]
        angle = np.arange(x.shape[1])[:, None] / model.rope_linear_factor * frequency
        pairs = x.reshape(*x.shape[:-1], -1, 2)
        turned = (pairs[..., 0] + 1j * pairs[..., 1]) * np.exp(1j * angle)
        return np.stack((turned.real, turned.imag), axis=-1).reshape(x.shape).astype(np.float32)
