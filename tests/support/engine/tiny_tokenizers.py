"""Small tokenizers of the two common kinds, trained or spelled out on the spot, as folders that a model would have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

TEXT = [
    '{"name": "Ann", "age": 31, "tags": ["a", "b"], "ok": true, "none": null}',
    "The quick brown fox jumps over the lazy dog. Grüße, 東京, naïve café, 🙂🙃",
    "one two three four five six seven eight nine ten false true null",
]
END = "<|end|>"
CHATML = (
    "{% for message in messages %}<|start|>{{ message['role'] }}\n{{ message['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)


def byte_level() -> Tokenizer:
    """BPE over bytes, as GPT-2, Llama 3 and Qwen have it, with special tokens and one added token that is none."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=[END, "<|start|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    tokenizer.add_tokens([AddedToken("<tool call é>", special=False)])
    return tokenizer


def byte_fallback() -> Tokenizer:
    """Pieces with ▁ for spaces and a token for each byte, as Llama 2 and Mistral have it."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["▁", "a", "b", "é", "▁a", "▁b", "ab", "▁ab", "▁▁", "東", "!", "▁the", "the", "\n"]
    merges = [("a", "b"), ("▁", "a"), ("▁", "b"), ("▁a", "b"), ("▁", "▁")]
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return tokenizer


def metaspace() -> Tokenizer:
    """Unigram pieces with ▁ for spaces and no bytes, as T5 and its kin have it."""
    pieces = [("<unk>", 0.0), ("▁", -2.0), ("▁the", -3.0), ("the", -3.5), ("a", -4.0), ("▁dog", -4.0), ("s", -5.0)]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


def save(tokenizer: Tokenizer, folder: Path, **files: Any) -> Path:
    """A folder with the tokenizer and JSON files; `tokenizer_config={...}` becomes tokenizer_config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    for name, values in files.items():
        (folder / f"{name}.json").write_text(json.dumps(values), encoding="utf-8")
    return folder
