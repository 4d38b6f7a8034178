"""The pair's byte-level BPE tokenizer with its chat template; trained on the generator's own conversations."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from backends.engine.demo_models.generator import Conversation, training_conversation

VOCABULARY = 1536
END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CALL_START, CALL_END = "<tool_call>", "</tool_call>"
MARKS = (END_OF_TEXT, TURN_START, TURN_END, CALL_START, CALL_END)
CONTEXT_TOKENS = 4096

CHAT_TEMPLATE = """\
{%- macro text(content) -%}
{%- if content is string -%}
{{ content }}
{%- elif content -%}
{%- for part in content if part.type == 'text' -%}{{ part.text }}{%- endfor -%}
{%- endif -%}
{%- endmacro -%}
{%- set system = text(messages[0].content) if messages and messages[0].role == 'system' else '' -%}
{%- if system or tools -%}
{{ '<|im_start|>system\\n' + system }}
{%- if tools -%}
{{ ('\\n' if system else '') + 'Tools:' }}
{%- for tool in tools -%}
{%- set function = tool.function if tool.function is defined else tool -%}
{{ ' ' + function.name + '(' + ((function.parameters or {}).properties or {}) | join(', ') + ')' }}
{%- endfor -%}
{%- endif -%}
{{ '<|im_end|>\\n' }}
{%- endif -%}
{%- for message in messages -%}
{%- if not (loop.first and message.role == 'system') -%}
{{ '<|im_start|>' + message.role + '\\n' }}
{{- text(message.content) }}
{%- for call in message.tool_calls or [] -%}
{%- set function = call.function if call.function is defined else call -%}
{%- set arguments = function.arguments -%}
{{ '<tool_call>\\n{"name": "' + function.name + '", "arguments": ' }}
{{- arguments if arguments is string else arguments | tojson -}}
{{ '}\\n</tool_call>' }}
{%- endfor -%}
{{ '<|im_end|>\\n' }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{ '<|im_start|>assistant\\n' }}
{%- endif -%}"""


def train_tokenizer(seed: int, *, conversations: int) -> PreTrainedTokenizerFast:
    """A tokenizer of `VOCABULARY` entries from `conversations` training conversations; digits stay single."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[AddedToken(text, normalized=False) for text in MARKS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(seed, conversations), trainer)
    content = json.loads(tokenizer.to_str())
    for token in content["added_tokens"]:
        # a trainer makes every mark special; those of calls must outlive decoding, for the parser of calls
        token["special"] = token["content"] not in (CALL_START, CALL_END)
    tokenizer = Tokenizer.from_str(json.dumps(content))
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=TURN_END,
        pad_token=END_OF_TEXT,
        chat_template=CHAT_TEMPLATE,
        model_max_length=CONTEXT_TOKENS,
        clean_up_tokenization_spaces=False,
    )


def load_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """The tokenizer of a saved folder."""
    tokenizer: PreTrainedTokenizerFast = PreTrainedTokenizerFast.from_pretrained(folder)
    return tokenizer


def render(
    tokenizer: PreTrainedTokenizerBase, conversation: Conversation, *, add_generation_prompt: bool = False
) -> str:
    """The conversation as the chat template writes it; `add_generation_prompt` stops where the last answer begins."""
    messages = conversation.messages()
    tools: list[dict[Any, Any] | Callable[..., Any]] = [tool.schema() for tool in conversation.tools]
    return str(
        tokenizer.apply_chat_template(
            messages[:-1] if add_generation_prompt else messages,
            tools=tools or None,
            add_generation_prompt=add_generation_prompt,
            tokenize=False,
        )
    )


def encode(tokenizer: PreTrainedTokenizerFast, conversation: Conversation) -> tuple[list[int], list[bool]]:
    """The rendered conversation's tokens, and which of them are answers (their closing token included)."""
    tokens: list[int] = []
    is_answer: list[bool] = []
    opening, closing = f"{TURN_START}assistant\n", f"{TURN_END}\n"
    before, *answers = render(tokenizer, conversation).split(opening)
    for part in answers:
        prompt = tokenizer.encode(before + opening, add_special_tokens=False)
        answer, before = part.split(closing, 1)
        reply = tokenizer.encode(answer + TURN_END, add_special_tokens=False)
        tokens += prompt + reply
        is_answer += [False] * len(prompt) + [True] * len(reply)
        before = "\n" + before
    return tokens, is_answer


def _texts(seed: int, conversations: int) -> Iterator[str]:
    rng = Random(seed)
    for _ in range(conversations):
        for message in training_conversation(rng, 0.5).messages():
            yield f"{message['role']}\n{message['content']}"
