"""A sentence-transformers model on the processor. Runs in the child process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from backends.errors import ConfigurationError
from policies.cache.semantic.encoder.folder import hash_folder
from policies.cache.semantic.encoder.token_layers import TokenLayers, token_layers
from policies.cache.semantic.sameness.alignment import EncodedPart, TokenVocabulary, vocabulary_of
from policies.cache.semantic.sameness.head import load_weights

_MOST_TOKENS = 512
"""Of texts that are read at once, had all as many as the longest: so much is looked at of them."""
_PROBE = "Where do I pay?"
_ALIKE = 0.999
"""Cosine of two vectors of a text by two ways of computing it that are one but for their rounding."""


class TransformerModel:
    """Tokenizer, transformer and pooling, in `threads` threads.

    A BERT whose texts are the mean of their tokens is read by its layers directly, in bfloat16 where the processor
    multiplies that; every other model by the library, in float32.
    """

    def __init__(self, folder: Path, threads: int) -> None:
        """Raises: ConfigurationError; whatever the libraries raise about a damaged folder."""
        try:
            import torch
        except ImportError as error:
            raise ConfigurationError(
                f"the encoder lacks {error.name}: pip install 'slipstream-gateway[semantic]'"
            ) from error
        torch.set_num_threads(threads)
        self._torch = torch
        model = load_sentence_transformer(folder)
        self._tokenizer = model.tokenizer
        self._prompt: str = model.prompts.get(model.default_prompt_name or "", "")
        self._max_tokens: int | None = model.max_seq_length
        if self._max_tokens is not None:
            # One more than the model reads tells a text that it would cut off from one that it reads whole.
            model.max_seq_length = self._max_tokens + 1
        self._model = model
        probe = self._embed_by_library([_PROBE])
        self.dimension = probe.shape[1]
        self.fingerprint = fingerprint_of(folder, self.dimension)
        self._layers = self._part_layers = self._layers_that_tell(probe[0])
        if self._layers is None:
            _pack_linears(model)
        else:
            weights = load_weights()
            if weights.card.fingerprint == self.fingerprint:
                self._part_layers = token_layers(model[0].auto_model, weights.arrays)
            # Its weights lie in the layers now.
            self._model = None

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """[texts, dimension]; zeros for a text of more tokens than the model reads."""
        if self._layers is None:
            return self._embed_by_library(texts)
        return self._embed_by_layers(texts, self._layers)

    def embed_parts(self, texts: Sequence[str]) -> list[EncodedPart]:
        """Each text's tokens and itself, of vectors of length 1; what is beyond the model's reach is cut off.

        By the model that heads were trained with they are read as it was adapted for them.

        Raises: ConfigurationError where the model is read by the library.
        """
        if self._part_layers is None:
            raise ConfigurationError("answers are read by the tokens of a BERT alone")
        parts = []
        for row, vectors in self._read(self._ids(texts, self._max_tokens), self._part_layers):
            # Without the marks at both ends, which are of the whole.
            own = np.concatenate((vectors[1:-1], vectors.mean(axis=0, keepdims=True)))
            own /= np.linalg.norm(own, axis=1, keepdims=True)
            parts.append(EncodedPart(np.array(row[1:-1], np.int32), own))
        return parts

    def vocabulary(self) -> TokenVocabulary:
        """Of its tokens."""
        return vocabulary_of_tokenizer(self._tokenizer)

    def _layers_that_tell(self, probe: NDArray[np.float32]) -> TokenLayers | None:
        """The model's own, if the mean of the tokens that they tell is the text's vector: `probe`, of the probe."""
        layers = token_layers(self._model[0].auto_model)
        if layers is None or self._max_tokens is None:
            return None
        told = self._embed_by_layers([_PROBE], layers)[0]
        return layers if float(told @ probe) > _ALIKE * float(np.linalg.norm(probe)) else None

    def _embed_by_layers(self, texts: Sequence[str], layers: TokenLayers) -> NDArray[np.float32]:
        assert self._max_tokens is not None, "asked when the layers were chosen"
        ids = self._ids(texts, self._max_tokens + 1)
        is_whole = np.array([len(row) <= self._max_tokens for row in ids])
        rows = np.zeros((len(texts), self.dimension), np.float32)
        read = self._read([row for row, whole in zip(ids, is_whole, strict=True) if whole], layers)
        for place, (_, vectors) in zip(np.flatnonzero(is_whole), read, strict=True):
            mean = vectors.mean(axis=0)
            rows[place] = mean / np.linalg.norm(mean)
        return rows

    def _ids(self, texts: Sequence[str], longest: int | None) -> list[list[int]]:
        """Each text's tokens, cut off at `longest`."""
        given = [self._prompt + text.strip() for text in texts]
        ids: list[list[int]] = self._tokenizer(given, truncation=True, max_length=longest).input_ids
        return ids

    def _read(self, ids: Sequence[list[int]], layers: TokenLayers) -> Iterator[tuple[list[int], NDArray[np.float32]]]:
        """Each text's tokens and what they tell, [tokens, dimension]."""
        torch = self._torch
        for rows in _runs(ids):
            lengths = [len(row) for row in rows]
            places = torch.cat([torch.arange(length) for length in lengths])
            with torch.inference_mode():
                found = layers(torch.tensor([token for row in rows for token in row]), places, torch.tensor(lengths))
            yield from zip(rows, np.split(found.numpy(), np.cumsum(lengths)[:-1]), strict=True)

    def _embed_by_library(self, texts: Sequence[str]) -> NDArray[np.float32]:
        features = tokenize(self._model, [self._prompt + text for text in texts])
        mask = features.get("attention_mask")
        if self._max_tokens is not None and mask is not None:
            is_whole = (mask.sum(dim=1) <= self._max_tokens).numpy()
            if not is_whole.all():
                return self._embed_whole(texts, is_whole)
        with self._torch.inference_mode():
            rows: NDArray[np.float32] = self._model(features)["sentence_embedding"].float().numpy()
        return rows

    def _embed_whole(self, texts: Sequence[str], is_whole: NDArray[np.bool_]) -> NDArray[np.float32]:
        rows = np.zeros((len(texts), self.dimension), np.float32)
        if is_whole.any():
            whole = [text for text, whole in zip(texts, is_whole, strict=True) if whole]
            rows[is_whole] = self._embed_by_library(whole)
        return rows


def _runs(rows: Sequence[list[int]]) -> Iterator[list[list[int]]]:
    """Neighbouring texts' tokens, as many as are read at once."""
    run: list[list[int]] = []
    longest = 0
    for row in rows:
        longest = max(longest, len(row))
        if run and longest * (len(run) + 1) > _MOST_TOKENS:
            yield run
            run, longest = [], len(row)
        run.append(row)
    if run:
        yield run


def vocabulary_of_tokenizer(tokenizer: Any) -> TokenVocabulary:
    """Of all tokens of a transformers tokenizer."""
    return vocabulary_of(tokenizer.convert_ids_to_tokens(list(range(len(tokenizer)))), tokenizer.unk_token)


def fingerprint_of(folder: Path, dimension: int) -> str:
    """Names the vectors of a folder's model: two of the same name can be compared. Reads every file."""
    return f"torch:float32:{dimension}:{hash_folder(folder)}"


def load_sentence_transformer(folder: Path) -> Any:
    """The model in evaluation mode, from the folder alone. Raises: ConfigurationError where the package is missing."""
    try:
        from sentence_transformers import SentenceTransformer
        from transformers.utils import logging
    except ImportError as error:
        raise ConfigurationError(
            f"the encoder lacks {error.name}: pip install 'slipstream-gateway[semantic]'"
        ) from error
    logging.disable_progress_bar()
    return SentenceTransformer(str(folder), device="cpu", local_files_only=True).eval()


def tokenize(model: Any, texts: Sequence[str]) -> dict[str, Any]:
    """What the model's first module takes, padded; cut off at its `max_seq_length`."""
    # The method has changed its name between versions of the library.
    prepare = getattr(model, "preprocess", None) or model.tokenize
    return dict(prepare(list(texts)))


def _pack_linears(module: Any) -> None:
    """Replace linear layers by ones whose weights lie as the processor's library reads them.

    For a short text the plain ones spend half of their time on rearranging weights: 14.4 -> 8.8 ms for 13 tokens.
    """
    import torch

    pack_weight: Any = getattr(torch.ops.mkldnn, "_reorder_linear_weight", None)
    linear: Any = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
    if pack_weight is None or linear is None:
        return

    class PackedLinear(torch.nn.Module):
        """y = x W' + b."""

        def __init__(self, plain: torch.nn.Linear) -> None:
            super().__init__()
            with torch.inference_mode():
                self._weight = pack_weight(plain.weight.detach(), None)
            self._bias = None if plain.bias is None else plain.bias.detach()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            """[..., in] -> [..., out]."""
            y: torch.Tensor = linear(x, self._weight, self._bias, "none", [], "")
            return y

    for name, child in list(module.named_children()):
        if type(child) is torch.nn.Linear and child.weight.dtype == torch.float32:
            setattr(module, name, PackedLinear(child))
        else:
            _pack_linears(child)
