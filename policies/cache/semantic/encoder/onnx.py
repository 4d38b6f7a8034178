"""A sentence-transformers model as int8 in ONNX Runtime: made once, then loaded without PyTorch. Runs in the child."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from tempfile import mkdtemp

import msgspec
import numpy as np
from numpy.typing import NDArray

from backends.errors import ConfigurationError
from policies.cache.semantic.encoder.folder import hash_folder
from policies.cache.semantic.encoder.transformer import load_sentence_transformer, tokenize

_RECIPE = "int8-1"
"""Changes with anything here that changes vectors."""
_INPUTS = ("input_ids", "attention_mask", "token_type_ids")
_PROBES = ("hello", "How do I change the address that my card is sent to?", "one two three four " * 12)
"""Of unequal lengths, or a mask that was lost on the way would not show."""
_MIN_COSINE = 0.9999
_MIN_INT8_COSINE = 0.85
"""Measured 0.92-0.97; less is a model that int8 ruins."""


class _Facts(msgspec.Struct):
    """What the tokenizer's file does not say."""

    max_tokens: int | None
    prompt: str


class OnnxModel:
    """Tokenizer and int8 graph, in `threads` threads.

    Texts go through it one by one: activations are quantized by the range of a whole batch, so a text's vector would
    depend on its neighbours (measured: cosine 0.973 to itself), and 8 at once are hardly faster.
    """

    def __init__(self, folder: Path, cache: Path, threads: int) -> None:
        """Makes the graph in a folder below `cache` where it is not there yet, which takes some ten seconds.

        Raises: ConfigurationError; whatever the libraries raise about a model that cannot be exported.
        """
        try:
            from onnxruntime import InferenceSession, SessionOptions
            from tokenizers import Tokenizer
        except ImportError as error:
            raise ConfigurationError(
                f"the ONNX encoder lacks {error.name}: pip install 'slipstream-gateway[semantic,onnx]'"
            ) from error
        source = hash_folder(folder)
        made = cache.expanduser() / f"{source}-{_RECIPE}"
        if not made.is_dir():
            _make(folder, made)
        options = SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        # Threads that wait by spinning would take the processor from the gateway.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._session = InferenceSession(made / "model.onnx", options, providers=["CPUExecutionProvider"])
        self._names = [given.name for given in self._session.get_inputs()]
        self._facts = msgspec.json.decode((made / "facts.json").read_bytes(), type=_Facts)
        self._tokenizer = Tokenizer.from_file(str(made / "tokenizer.json"))
        self._tokenizer.no_padding()
        if self._facts.max_tokens is not None:
            # One more than the model reads tells a text that it would cut off from one that it reads whole.
            self._tokenizer.enable_truncation(self._facts.max_tokens + 1)
        self.dimension = self._embed_one("a").shape[0]
        self.fingerprint = f"onnx:{_RECIPE}:{self.dimension}:{source}"

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """[texts, dimension]; zeros for a text of more tokens than the model reads."""
        return np.stack([self._embed_one(text) for text in texts])

    def _embed_one(self, text: str) -> NDArray[np.float32]:
        tokens = self._tokenizer.encode(self._facts.prompt + text.strip())
        if self._facts.max_tokens is not None and len(tokens.ids) > self._facts.max_tokens:
            return np.zeros(self.dimension, np.float32)
        values = dict(zip(_INPUTS, (tokens.ids, tokens.attention_mask, tokens.type_ids), strict=True))
        given = {name: np.array([values[name]], np.int64) for name in self._names}
        vector: NDArray[np.float32] = self._session.run(None, given)[0][0]
        return vector


def _make(folder: Path, made: Path) -> None:
    """Export, check, quantize, check; the folder appears when it is whole."""
    made.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(mkdtemp(prefix="unfinished-", dir=made.parent))
    try:
        _export(folder, unfinished)
        if not made.exists():
            unfinished.rename(made)
    except OSError:
        # Somebody else may have made it meanwhile.
        if not made.is_dir():
            raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _export(folder: Path, target: Path) -> None:
    try:
        import torch
        from onnxruntime.quantization import QuantType, quantize_dynamic
    except ImportError as error:
        raise ConfigurationError(
            f"making the ONNX encoder needs {error.name}: pip install 'slipstream-gateway[semantic,onnx]'"
        ) from error
    model = load_sentence_transformer(folder)

    class Vectors(torch.nn.Module):
        """The model with tensors in and out."""

        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
            """[texts, tokens] each -> [texts, dimension]."""
            vectors: torch.Tensor = self.model(dict(zip(names, inputs, strict=True)))["sentence_embedding"]
            return vectors

    features = tokenize(model, _PROBES)
    names = [name for name in _INPUTS if name in features]
    with torch.inference_mode():
        expected = model(dict(features))["sentence_embedding"].float().numpy()
    axes = {name: {0: "texts", 1: "tokens"} for name in names}
    exact, small = target / "exact.onnx", target / "model.onnx"
    torch.onnx.export(
        # The exporter restores the mode of what it is given, and a new module is in training mode: dropout.
        Vectors().eval(),
        tuple(features[name] for name in names),
        str(exact),
        input_names=names,
        output_names=["vectors"],
        dynamic_axes=axes | {"vectors": {0: "texts"}},
        opset_version=17,
        dynamo=False,
    )
    _check(exact, {name: features[name].numpy() for name in names}, expected, _MIN_COSINE)
    quantize_dynamic(exact, small, weight_type=QuantType.QInt8)
    exact.unlink()
    _check(small, {name: features[name].numpy() for name in names}, expected, _MIN_INT8_COSINE)
    model.tokenizer.backend_tokenizer.save(str(target / "tokenizer.json"))
    facts = _Facts(model.max_seq_length, model.prompts.get(model.default_prompt_name or "", ""))
    (target / "facts.json").write_bytes(msgspec.json.encode(facts))


def _check(path: Path, given: dict[str, NDArray[np.int64]], expected: NDArray[np.float32], min_cosine: float) -> None:
    from onnxruntime import InferenceSession

    vectors = InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, given)[0]
    lengths = np.linalg.norm(vectors, axis=1) * np.linalg.norm(expected, axis=1)
    worst = float(((vectors * expected).sum(axis=1) / lengths).min())
    if not worst >= min_cosine:
        raise ConfigurationError(
            f"the exported encoder's vectors differ from the model's: cosine {worst:.4f}, {min_cosine} is needed; "
            "use the encoder without ONNX"
        )
