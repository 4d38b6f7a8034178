"""Our reading of tokenizer files and chat templates is transformers' own."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from backends.engine.errors import ModelError, RequestRefused
from backends.engine.text.tokenizer import Tokenizer
from tests.support.engine.tiny_tokenizers import CHATML, END, TEXT, byte_fallback, byte_level, save

MESSAGES = [
    {"role": "system", "content": 'Be <brief> & "kind".'},
    {"role": "user", "content": "  Grüße!  "},
    {"role": "assistant", "content": "Hi", "tool_calls": [{"name": "f", "arguments": {"a": [1, None, "é"]}}]},
    {"role": "user", "content": "Bye"},
]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
TEMPLATES = {
    "chatml": CHATML,
    "system apart": (
        "{{ bos_token }}{% if messages[0]['role'] == 'system' %}\n"
        "    {%- set system = messages[0]['content'] | trim %}\n"
        "    {%- set loop_messages = messages[1:] %}\n"
        "{% else %}\n    {%- set loop_messages = messages %}\n{% endif %}\n"
        "{% for m in loop_messages %}\n"
        "  {% if loop.first and system is defined %}<<SYS>>{{ system }}<</SYS>>{% endif %}\n"
        "[{{ m.role | upper }}] {{ m['content'] | trim }} {{ eos_token if m.role == 'assistant' }}\n"
        "{% endfor %}"
    ),
    "tools": (
        "{% if tools is not none %}# Tools\n{% for tool in tools %}{{ tool | tojson(indent=2) }}\n{% endfor %}"
        "{% endif %}"
        "{% for m in messages %}{% if m.tool_calls %}{% for call in m.tool_calls %}<call>{{ call | tojson }}</call>"
        "{% endfor %}{% continue %}{% endif %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
        "{{ documents is none }}{{ extra | default('no extra') }}"
    ),
    "namespace and generation": (
        "{%- set ns = namespace(count=0) -%}\n{%- for m in messages -%}\n"
        "{%- if m.role == 'assistant' -%}{% generation %}{{ m.content }}{% set ns.count = ns.count + 1 %}"
        "{% endgeneration %}{%- else -%}{{ m.content }}{%- endif -%}\n"
        "{%- if loop.index > 3 -%}{% break %}{%- endif -%}\n"
        "{%- endfor -%}\n{{ ns.count }}{% if add_generation_prompt %}>{% endif %}"
    ),
}


def make_folder(path: Path, template: Any = None, **config: Any) -> Path:
    """A byte-level tokenizer with a template."""
    values = {"bos_token": "<|start|>", "eos_token": END, **config}
    if template is not None:
        values["chat_template"] = template
    return save(byte_level(), path, tokenizer_config=values)


@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES.keys())
@pytest.mark.parametrize("tools", [None, TOOLS], ids=["plain", "with tools"])
@pytest.mark.parametrize("add_generation_prompt", [True, False])
def test_chat_template_renders_as_transformers_does(
    tmp_path: Path, template: str, tools: list[dict[str, Any]] | None, add_generation_prompt: bool
) -> None:
    """The text and the tokens of a chat are those that transformers gives."""
    folder = make_folder(tmp_path / "model", template)
    theirs = PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"), bos_token="<|start|>", eos_token=END, chat_template=template
    )
    ours = Tokenizer(folder)
    options: dict[str, Any] = {"add_generation_prompt": add_generation_prompt, "extra": "more"}
    text = theirs.apply_chat_template(MESSAGES, tools=tools, tokenize=False, **options)
    ids = theirs.apply_chat_template(MESSAGES, tools=tools, return_dict=False, **options)

    assert ours.render_chat(MESSAGES, tools, **options) == text
    assert ours.apply_chat_template(MESSAGES, tools, **options) == ids


def test_chat_template_file_goes_before_the_configuration(tmp_path: Path) -> None:
    """chat_template.jinja is where transformers writes it today."""
    folder = make_folder(tmp_path / "model", "old")
    (folder / "chat_template.jinja").write_text("new {{ messages[0].content }}", encoding="utf-8")

    assert Tokenizer(folder).render_chat([{"role": "user", "content": "x"}]) == "new x"


@pytest.mark.parametrize(("name", "expected"), [("self", "xNone"), ("documents", "xy")])
def test_chat_template_takes_variables_of_any_name(tmp_path: Path, name: str, expected: str) -> None:
    """Clients choose the names."""
    tokenizer = Tokenizer(make_folder(tmp_path / "model", "{{ messages[0].content }}{{ documents }}"))

    assert tokenizer.render_chat([{"role": "user", "content": "x"}], **{name: "y"}) == expected


def test_chat_template_for_tools_is_taken_where_there_are_some(tmp_path: Path) -> None:
    """A list of named templates holds one for chats with tools."""
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
    tokenizer = Tokenizer(make_folder(tmp_path / "model", named))

    assert tokenizer.render_chat(MESSAGES) == "plain"
    assert tokenizer.render_chat(MESSAGES, TOOLS) == "tools"


def test_chat_template_reads_the_clock_that_it_is_given(tmp_path: Path) -> None:
    """Dates in prompts come from the clock."""
    folder = make_folder(tmp_path / "model", "{{ strftime_now('%d %b %Y') }}")

    assert Tokenizer(folder, now=lambda: datetime(2024, 7, 26)).render_chat([]) == "26 Jul 2024"


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        (None, "no chat template"),
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[0].missing.field }}", "missing"),
        ("{{ 1 + messages[0].content }}", "fails on this chat"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ([{"name": "other", "template": "x"}], "'default'"),
    ],
)
def test_chat_that_the_template_refuses_is_refused_with_its_reason(tmp_path: Path, template: Any, problem: str) -> None:
    """The caller learns what the template said; the sandbox holds."""
    tokenizer = Tokenizer(make_folder(tmp_path / "model", template))

    with pytest.raises(RequestRefused, match=problem) as caught:
        tokenizer.apply_chat_template([{"role": "user", "content": "x"}])

    assert caught.value.param == "messages"


def test_tokenizer_encodes_and_decodes_as_the_library_does(tmp_path: Path) -> None:
    """Texts come back as they went in; special tokens are left out of texts."""
    tokenizer = Tokenizer(make_folder(tmp_path / "model"))
    ids = tokenizer.encode(TEXT[1])

    assert tokenizer.decode(ids) == TEXT[1]
    assert tokenizer.decode([0, *ids, 1]) == TEXT[1]
    assert tokenizer.vocab_size == max(byte_level().get_vocab().values()) + 1


@pytest.mark.parametrize("how", ["text", "chat"])
def test_text_that_is_many_times_too_long_is_refused_before_it_is_read(tmp_path: Path, how: str) -> None:
    """All of it would take minutes and gigabytes, while other calls wait. Of a page too much it is said how much."""
    tokenizer = Tokenizer(make_folder(tmp_path / "model", CHATML))
    tokenizer.limit = 1000
    chat = [{"role": "user", "content": "word " * 400_000}]

    with pytest.raises(RequestRefused, match=r"\b2\d{6} characters") as caught:
        tokenizer.encode(chat[0]["content"]) if how == "text" else tokenizer.apply_chat_template(chat)

    assert (caught.value.code, caught.value.param) == (
        "context_length_exceeded",
        "messages" if how == "chat" else None,
    )
    assert len(tokenizer.encode("word " * 2000)) > 1000


def test_text_of_few_tokens_is_encoded_however_long_they_are(tmp_path: Path) -> None:
    """A limit is one of tokens."""
    backend = byte_level()
    backend.add_tokens(["-" * 100])
    tokenizer = Tokenizer(save(backend, tmp_path))
    tokenizer.limit = 10

    assert len(tokenizer.encode("-" * 1000)) == 10


def test_tokenizer_ends_are_gathered_from_all_files(tmp_path: Path) -> None:
    """Each file may name other tokens."""
    folder = save(
        byte_level(),
        tmp_path,
        config={"eos_token_id": 7},
        generation_config={"eos_token_id": [7, 9]},
        tokenizer_config={"eos_token": {"content": END, "special": True}},
    )

    assert Tokenizer(folder).eos_token_ids == (0, 7, 9)


def test_tokenizer_without_any_named_end_has_none(tmp_path: Path) -> None:
    """Only tokenizer.json is needed."""
    assert Tokenizer(save(byte_fallback(), tmp_path)).eos_token_ids == ()


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("tokenizer.json", None, "save_pretrained"),
        ("tokenizer.json", "{", "tokenizer.json cannot be read"),
        ("tokenizer_config.json", "[]", "expected a JSON object"),
        ("tokenizer_config.json", '{"chat_template": 5}', "'chat_template' is 5"),
        ("tokenizer_config.json", '{"chat_template": "{% if %}"}', "line 1"),
        ("chat_template.jinja", "\n{{ x", "chat_template.jinja.*line 2"),
        ("chat_template.jinja", "{% break %}", "chat_template.jinja.*outside loop"),
        ("chat_template.jinja", "{{" * 100_000, "chat_template.jinja.*recursion"),
        ("generation_config.json", '{"eos_token_id": "x"}', "'eos_token_id' is 'x'"),
    ],
)
def test_tokenizer_with_a_bad_file_names_it(tmp_path: Path, name: str, text: str | None, problem: str) -> None:
    """What is wrong with the folder is said when it is loaded."""
    folder = make_folder(tmp_path / "model", CHATML)
    if text is None:
        (folder / name).unlink()
    else:
        (folder / name).write_text(text, encoding="utf-8")

    with pytest.raises(ModelError, match=problem):
        Tokenizer(folder)


def test_tokenizer_with_a_template_that_is_no_text_names_it(tmp_path: Path) -> None:
    """A file that was torn, or is another one."""
    folder = make_folder(tmp_path / "model")
    (folder / "chat_template.jinja").write_bytes(b"\xff\xfe{{")

    with pytest.raises(ModelError, match="chat_template\\.jinja cannot be read"):
        Tokenizer(folder)


def test_tokenizer_that_numbers_a_token_out_of_all_reason_is_refused(tmp_path: Path) -> None:
    """The library counts up to it when it writes the vocabulary out, and ends the process where memory does."""
    folder = make_folder(tmp_path / "model")
    written = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    written["model"]["vocab"]["far"] = 4_000_000_000
    (folder / "tokenizer.json").write_text(json.dumps(written), encoding="utf-8")

    with pytest.raises(ModelError, match="tokenizer\\.json has a token with the number 4000000000"):
        Tokenizer(folder)


def test_tokenizer_ignores_truncation_and_padding_that_were_saved_along(tmp_path: Path) -> None:
    """Training scripts leave them in the file; a prompt cut in silence would be a wrong answer."""
    backend = byte_level()
    backend.enable_truncation(3)
    backend.enable_padding(length=50)
    text = "one two three four five six seven"

    tokenizer = Tokenizer(save(backend, tmp_path))

    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_tokenizer_comes_without_transformers(tmp_path: Path) -> None:
    """Importing transformers costs seconds of every start."""
    folder = make_folder(tmp_path / "model", CHATML)
    program = (
        "import sys; from pathlib import Path; from backends.engine.text.tokenizer import Tokenizer;"
        f"Tokenizer(Path({json.dumps(str(folder))})).apply_chat_template([]); assert 'transformers' not in sys.modules"
    )

    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
