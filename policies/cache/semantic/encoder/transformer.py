"""A sentence-transformers model on the processor, its module called directly. Runs in the child process."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from backends.errors import ConfigurationError
from policies.cache.semantic.encoder.folder import hash_folder
from policies.cache.semantic.sameness.alignment import EncodedPart, TokenVocabulary, vocabulary_of


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

        For models of BERT's kind whose texts are the mean of their tokens, as that of the heads is. The texts lie in
        one row and each sees itself alone: padding sentences to one length takes a quarter of the time.
        """
        torch = self._torch
        features = tokenize(self._model, [self._prompt + text for text in texts])
        is_token = features["attention_mask"].bool()
        ids, places = features["input_ids"][is_token], is_token.cumsum(dim=1)[is_token] - 1
        lengths = is_token.sum(dim=1)
        of_text = torch.repeat_interleave(torch.arange(len(texts)), lengths)
        sees = of_text[:, None] == of_text
        with torch.inference_mode():
            found = self._model[0].auto_model(
                input_ids=ids[None], position_ids=places[None], attention_mask=sees[None, None]
            )
            rows = found.last_hidden_state[0].float().split(lengths.tolist())
            # Without the marks at both ends, which are of the whole.
            vectors = [torch.cat((row[1:-1], row.mean(dim=0, keepdim=True))) for row in rows]
            vectors = [torch.nn.functional.normalize(vector, dim=-1).numpy() for vector in vectors]
        own_ids = [row[1:-1].numpy().astype(np.int32) for row in ids.split(lengths.tolist())]
        return list(map(EncodedPart, own_ids, vectors))

    def vocabulary(self) -> TokenVocabulary:
        """Of its tokens."""
        tokenizer = self._model.tokenizer
        return vocabulary_of(tokenizer.convert_ids_to_tokens(list(range(len(tokenizer)))), tokenizer.unk_token)

    def _embed_whole(self, texts: Sequence[str], is_whole: NDArray[np.bool_]) -> NDArray[np.float32]:
        rows = np.zeros((len(texts), self.dimension), np.float32)
        if is_whole.any():
            rows[is_whole] = self.embed([text for text, whole in zip(texts, is_whole, strict=True) if whole])
        return rows


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
