"""A sentence-transformers model on the processor, its module called directly. Runs in the child process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from backends.errors import ConfigurationError
from policies.cache.semantic.encoder.folder import hash_folder
from policies.cache.semantic.encoder.token_layers import token_layers
from policies.cache.semantic.sameness.alignment import EncodedPart, TokenVocabulary, vocabulary_of

_MOST_TOKENS = 512
"""Of texts that are read at once. Each takes memory and time for each other, though they do not see each other."""


class TransformerModel:
    """Tokenizer, transformer and pooling in float32, in `threads` threads."""

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
        self._model = load_sentence_transformer(folder)
        # Before its weights are packed away.
        self._layers = token_layers(self._model[0].auto_model)
        _pack_linears(self._model)
        self._prompt: str = self._model.prompts.get(self._model.default_prompt_name or "", "")
        self._max_tokens: int | None = self._model.max_seq_length
        if self._max_tokens is not None:
            # One more than the model reads tells a text that it would cut off from one that it reads whole.
            self._model.max_seq_length = self._max_tokens + 1
        self.dimension = self.embed(["a"]).shape[1]
        self.fingerprint = fingerprint_of(folder, self.dimension)

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """[texts, dimension]; zeros for a text of more tokens than the model reads."""
        features = tokenize(self._model, [self._prompt + text for text in texts])
        mask = features.get("attention_mask")
        if self._max_tokens is not None and mask is not None:
            is_whole = (mask.sum(dim=1) <= self._max_tokens).numpy()
            if not is_whole.all():
                return self._embed_whole(texts, is_whole)
        with self._torch.inference_mode():
            rows: NDArray[np.float32] = self._model(features)["sentence_embedding"].float().numpy()
        return rows

    def embed_parts(self, texts: Sequence[str]) -> list[EncodedPart]:
        """Each text's tokens and itself, of vectors of length 1; what is beyond the model's reach is cut off.

        For models whose texts are the mean of their tokens, as that of the heads is. Raises: ConfigurationError where
        the model is no BERT.
        """
        torch = self._torch
        if self._layers is None:
            raise ConfigurationError("answers are read by the tokens of a BERT alone")
        tokenizer, longest = self._model.tokenizer, self._model.max_seq_length
        ids = tokenizer([self._prompt + text.strip() for text in texts], truncation=True, max_length=longest).input_ids
        parts = []
        for rows in _runs(ids):
            lengths = torch.tensor([len(row) for row in rows])
            places = torch.tensor([place for row in rows for place in range(len(row))])
            with torch.inference_mode():
                found = self._layers(torch.tensor([token for row in rows for token in row]), places, lengths)
            for row, vectors in zip(rows, found.split(lengths.tolist()), strict=True):
                # Without the marks at both ends, which are of the whole.
                own = torch.cat((vectors[1:-1], vectors.mean(dim=0, keepdim=True)))
                own = torch.nn.functional.normalize(own, dim=-1)
                parts.append(EncodedPart(np.array(row[1:-1], np.int32), own.numpy()))
        return parts

    def vocabulary(self) -> TokenVocabulary:
        """Of its tokens."""
        tokenizer = self._model.tokenizer
        return vocabulary_of(tokenizer.convert_ids_to_tokens(list(range(len(tokenizer)))), tokenizer.unk_token)

    def _embed_whole(self, texts: Sequence[str], is_whole: NDArray[np.bool_]) -> NDArray[np.float32]:
        rows = np.zeros((len(texts), self.dimension), np.float32)
        if is_whole.any():
            rows[is_whole] = self.embed([text for text, whole in zip(texts, is_whole, strict=True) if whole])
        return rows


def _runs(rows: Sequence[list[int]]) -> Iterator[list[list[int]]]:
    """Neighbouring texts' tokens, as many as are read at once."""
    run: list[list[int]] = []
    count = 0
    for row in rows:
        if run and count + len(row) > _MOST_TOKENS:
            yield run
            run, count = [], 0
        run.append(row)
        count += len(row)
    if run:
        yield run


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
