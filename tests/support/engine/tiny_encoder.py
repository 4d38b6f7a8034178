"""A sentence-transformers model of random weights that loads in no time: 1 layer, 32 numbers, 16 tokens."""

from __future__ import annotations

import json
from pathlib import Path

DIMENSION = 32
MAX_TOKENS = 16
WORDS = ("how", "do", "i", "change", "my", "card", "address", "what", "is", "the", "rate", "of", "exchange", "hello")

_PARTS = {
    "modules.json": [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
        {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"},
    ],
    "1_Pooling/config.json": {"word_embedding_dimension": DIMENSION, "pooling_mode_mean_tokens": True},
    "sentence_bert_config.json": {"max_seq_length": MAX_TOKENS, "do_lower_case": False},
}


def make_tiny_encoder(folder: Path, *, seed: int = 0) -> Path:
    """Writes the model into `folder` / "model". Texts of `WORDS` are one token a word, all others are unknown."""
    import torch
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    vocabulary = {word: number for number, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS])}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        model_max_length=MAX_TOKENS,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=DIMENSION,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=MAX_TOKENS,
        initializer_range=0.5,
    )
    model = folder / "model"
    BertModel(config).save_pretrained(model)
    fast.save_pretrained(model)
    for name, content in _PARTS.items():
        path = model / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(content))
    return model
