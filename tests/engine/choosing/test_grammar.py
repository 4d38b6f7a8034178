"""Answers keep the form that was asked for, also where drafts propose something else."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch

from backends.engine.choosing.grammar import GrammarFactory
from backends.engine.choosing.sampling import Sampler
from backends.engine.errors import RequestRefused
from backends.engine.request import Request, SamplingParams
from backends.engine.sequence import Sequence, Slice
from backends.engine.text.tokenizer import Tokenizer
from tests.support.engine.tiny_tokenizers import END, byte_fallback, byte_level, save

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 5}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
CPU = torch.device("cpu")
NUM_PADDED = 7
"""Rows of logits that stand for no token, as checkpoints have them."""


@pytest.fixture(scope="module", params=[byte_level, byte_fallback])
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """One of either kind, with one token that ends an answer."""
    end = END if request.param is byte_level else "</s>"
    folder: Path = tmp_path_factory.mktemp("model")
    return Tokenizer(save(request.param(), folder, tokenizer_config={"eos_token": end}))


@pytest.fixture(scope="module")
def grammars(tokenizer: Tokenizer) -> GrammarFactory:
    """The factory for it."""
    return GrammarFactory(tokenizer)


def token_of(tokenizer: Tokenizer, text: str) -> int:
    """The token that is this text and no more; not its byte token, which comes before."""
    return max(token for token in range(tokenizer.vocab_size) if tokenizer.token_bytes(token) == text.encode())


def allowed(mask: bytes) -> list[int]:
    """The tokens of a mask."""
    return [index for index in range(8 * len(mask)) if mask[index // 8] >> index % 8 & 1]


def answer(
    tokenizer: Tokenizer, grammars: GrammarFactory, grammar: str, *, seed: int, num_draft: int = 0, **params: Any
) -> list[int]:
    """What a model of random opinions says within a grammar, at most 200 tokens; drafts are random too."""
    generator = torch.Generator().manual_seed(seed)
    vocab = tokenizer.vocab_size + NUM_PADDED
    settings = SamplingParams(grammar=grammar, **params)
    sequence = Sequence(Request(id="r", prompt=(5, 6), params=settings), 0, 0, [5, 6], seed)
    sampler = Sampler(vocab, CPU, grammars, eos_token_ids=tokenizer.eos_token_ids)
    while sequence.num_output < 200:
        sequence.draft = torch.randint(vocab, (num_draft,), generator=generator).tolist()
        if num_draft:
            # One draft that is likely to be allowed.
            sequence.draft[0] = token_of(tokenizer, '"')
        logits = torch.randn(1 + num_draft, vocab, generator=generator) * 3
        part = Slice(sequence, len(sequence.tokens) - 1, 1, num_draft, samples=True)
        for token in sampler.choose(logits, [part])[0].tokens:
            sequence.tokens.append(token)
            if token in tokenizer.eos_token_ids:
                return sequence.tokens[2:]
    return sequence.tokens[2:]


@pytest.mark.parametrize("num_draft", [0, 3])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_grammar_of_a_schema_gives_values_of_the_schema(
    tokenizer: Tokenizer, grammars: GrammarFactory, num_draft: int, temperature: float
) -> None:
    """Twelve answers of a model that knows nothing are all valid, with and without drafts."""
    grammar = grammars.json_schema(SCHEMA)
    num_ended = 0
    for seed in range(12):
        tokens = answer(tokenizer, grammars, grammar, seed=seed, num_draft=num_draft, temperature=temperature)
        if tokens[-1] in tokenizer.eos_token_ids:
            num_ended += 1
            jsonschema.validate(json.loads(tokenizer.decode(tokens)), SCHEMA)

    assert num_ended >= 6


def test_grammar_of_json_mode_begins_with_a_brace(tokenizer: Tokenizer, grammars: GrammarFactory) -> None:
    """Nothing else may come first, and no token that the vocabulary does not have."""
    tokens = answer(tokenizer, grammars, grammars.json_object(), seed=1, temperature=1.0)

    assert tokenizer.decode(tokens).lstrip().startswith("{")
    assert max(tokens) < tokenizer.vocab_size


@pytest.mark.parametrize("num_draft", [0, 2])
def test_grammar_of_a_regex_ends_where_it_does(tokenizer: Tokenizer, grammars: GrammarFactory, num_draft: int) -> None:
    """The end comes when nothing else may, even where more tokens were demanded."""
    grammar = grammars.regex("(a|b){3}!")
    tokens = answer(tokenizer, grammars, grammar, seed=3, num_draft=num_draft, temperature=1.0, min_tokens=50)

    assert tokens[-1] in tokenizer.eos_token_ids
    assert len(tokenizer.decode(tokens)) == 4


def test_grammar_that_ends_behind_a_draft_goes_before_min_tokens(
    tokenizer: Tokenizer, grammars: GrammarFactory
) -> None:
    """Behind the last draft only the end is left; forbidding it would leave nothing to draw."""
    drafts = [token_of(tokenizer, "b"), token_of(tokenizer, "!")]
    params = SamplingParams(grammar=grammars.regex("b!"), min_tokens=50, temperature=0.0)
    sequence = Sequence(Request(id="r", prompt=(5,), params=params), 0, 0, [5], 0, draft=drafts)
    sampler = Sampler(tokenizer.vocab_size, CPU, grammars, eos_token_ids=tokenizer.eos_token_ids)
    logits = torch.randn(3, tokenizer.vocab_size, generator=torch.Generator().manual_seed(1))
    for row, token in enumerate(drafts):
        logits[row, token] = 50.0
    (choice,) = sampler.choose(logits, [Slice(sequence, 0, 1, 2, samples=True)])

    assert choice.tokens == [*drafts, *tokenizer.eos_token_ids]


def test_grammar_with_alternatives_is_taken(tokenizer: Tokenizer, grammars: GrammarFactory) -> None:
    """One of them comes out, whole."""
    tokens = answer(tokenizer, grammars, grammars.regex("a|ba"), seed=3, temperature=1.0)

    assert tokenizer.decode(tokens) in {"a", "ba"}


def test_grammar_masks_leave_the_matcher_where_it_was(tokenizer: Tokenizer, grammars: GrammarFactory) -> None:
    """Drafts are looked at and taken back, up to one that is refused, also through the end."""
    a, bang = (token_of(tokenizer, text) for text in "a!")
    (end,) = tokenizer.eos_token_ids
    grammar = grammars.start(grammars.regex("a(a|!)*"))
    first = grammar.masks([])
    masks = grammar.masks([a, bang, end, a])

    assert grammar.masks([]) == first == masks[:1]
    grammar.advance([a])
    assert grammar.masks([bang]) == masks[1:3]


def test_grammar_refuses_drafts_that_are_no_tokens(tokenizer: Tokenizer, grammars: GrammarFactory) -> None:
    """A padded row of the model's head ends the drafts that can be accepted, and spoils nothing."""
    grammar = grammars.start(grammars.regex("a+"))
    a = token_of(tokenizer, "a")

    assert len(grammar.masks([a, tokenizer.vocab_size + 1, a])) == 2
    assert len(grammar.masks([a, a])) == 3


def test_grammar_is_compiled_once_and_started_afresh(tokenizer: Tokenizer, grammars: GrammarFactory) -> None:
    """Two answers do not share how far they have come."""
    a = token_of(tokenizer, "a")
    grammar = grammars.regex("aa")
    one, two = grammars.start(grammar), grammars.start(grammar)
    one.advance([a, a])
    (end,) = tokenizer.eos_token_ids

    assert allowed(one.masks([])[0]) == [end]
    assert a in allowed(two.masks([])[0])


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "nonsense"},
        {"type": "string", "minLength": 5, "maxLength": 2},
        {"$ref": "#/definitions/missing"},
        {"type": "string", "pattern": "["},
        {"$ref": "#"},
    ],
    ids=str,
)
def test_grammar_that_cannot_be_compiled_is_refused(grammars: GrammarFactory, schema: dict[str, Any]) -> None:
    """The error says why, and which field it is."""
    with pytest.raises(RequestRefused, match="cannot be compiled: ") as caught:
        grammars.json_schema(schema)

    assert (caught.value.param, caught.value.code) == ("response_format", "invalid_grammar")


def test_grammar_of_a_schema_says_what_is_wrong_with_a_pattern(grammars: GrammarFactory) -> None:
    """The library draws a picture of it; what is wrong stands below."""
    with pytest.raises(RequestRefused, match="unclosed character class"):
        grammars.json_schema({"type": "string", "pattern": "["})


@pytest.mark.parametrize(
    ("text", "is_taken"),
    [
        ('{"name":"a","age":1}', True),
        ('{"name": "a", "age": 1}', True),
        ('{\n  "name": "a",\n  "age": 1\n}', True),
        ('{"name":  "a", "age": 1}', False),
        ('{"name":\n\n"a", "age": 1}', False),
    ],
)
def test_grammar_of_a_schema_bounds_white_space(
    tokenizer: Tokenizer, grammars: GrammarFactory, text: str, is_taken: bool
) -> None:
    """JSON as people write it, on one line or indented; but not spaces without end."""
    grammar = grammars.start(grammars.json_schema(SCHEMA))

    tokens = [token_of(tokenizer, character) for character in text]

    assert (len(grammar.masks(tokens)) == len(tokens) + 1) == is_taken


def test_grammar_beyond_the_librarys_limits_is_an_error(tokenizer: Tokenizer, grammars: GrammarFactory) -> None:
    """An answer that ended there would look whole."""
    schema = {"type": "object", "properties": {f"p{number}": {"type": "string"} for number in range(1000)}}
    grammar = grammars.start(grammars.json_schema(schema))
    tokens = [token_of(tokenizer, "{"), token_of(tokenizer, '"')]

    with pytest.raises(RequestRefused, match="too much for this answer") as caught:
        grammar.masks(tokens)

    assert caught.value.param == "response_format"


def test_grammar_of_a_broken_regex_is_refused(grammars: GrammarFactory) -> None:
    """As schemas are."""
    for make, text in ((grammars.regex, "[a"), (grammars.check, "{")):
        with pytest.raises(RequestRefused):
            make(text)


def test_grammar_of_one_row_leaves_its_neighbours_alone(tokenizer: Tokenizer, grammars: GrammarFactory) -> None:
    """A free row beside it takes its own likeliest token."""
    logits = torch.randn(2, tokenizer.vocab_size, generator=torch.Generator().manual_seed(5))
    params = SamplingParams(grammar=grammars.regex("b+"), temperature=0.0)
    sequences = [
        Sequence(Request(id=str(index), prompt=(5,), params=settings), 0, 0, [5], 0)
        for index, settings in enumerate((SamplingParams(temperature=0.0), params))
    ]
    sampler = Sampler(tokenizer.vocab_size, CPU, grammars)
    free, held = sampler.choose(logits.clone(), [Slice(sequence, 0, 1, 0, samples=True) for sequence in sequences])

    assert free.tokens == [int(logits[0].argmax())]
    assert tokenizer.token_bytes(held.tokens[0]).strip(b"b") == b""


CHAIN = """
import sys
from pathlib import Path
from backends.engine.choosing.grammar import GrammarFactory
from backends.engine.text.tokenizer import Tokenizer

names = [f"#/$defs/{number}" for number in range(3000)]
forms = {str(number): {"type": "object", "properties": {"x": {"$ref": name}}} for number, name in enumerate(names[1:])}
tokenizer = Tokenizer(Path(sys.argv[1]))
grammars = GrammarFactory(tokenizer)
grammar = grammars.json_schema({"$ref": names[0], "$defs": {**forms, "2999": {"type": "null"}}})
print(len(grammars.start(grammar).masks(tokenizer.encode('{"x": {"x": {}}}'))))
"""


def test_grammar_of_a_long_chain_of_references_does_not_end_the_process(tmp_path: Path) -> None:
    """The library follows it by recursion. In a process of its own, for which there would be no exception."""
    folder = save(byte_level(), tmp_path)

    ran = subprocess.run([sys.executable, "-c", CHAIN, str(folder)], capture_output=True, text=True, check=False)

    assert (ran.returncode, ran.stderr) == (0, "")
    assert int(ran.stdout) > 3


def test_grammar_that_is_too_long_is_refused(grammars: GrammarFactory) -> None:
    """Before it is compiled, which takes a second for some megabytes."""
    with pytest.raises(RequestRefused, match="at most 262144 are taken") as caught:
        grammars.json_schema({"enum": [f"value {number}" for number in range(20_000)]})

    assert caught.value.param == "response_format"


ENDLESS = """
import sys, time
from pathlib import Path
from backends.engine.choosing.grammar import GrammarFactory
from backends.engine.errors import RequestRefused
from backends.engine.text.tokenizer import Tokenizer

grammars = GrammarFactory(Tokenizer(Path(sys.argv[1])), limit_s=1.0)
grammars.json_object()
for kind in ("a", "b", "c"):
    began = time.monotonic()
    try:
        grammars.json_schema({"allOf": [{"type": "string", "pattern": f".*{kind}{number}.*"} for number in range(40)]})
    except RequestRefused as refused:
        print(str(refused).split(":")[0], "|", time.monotonic() - began < 60)
grammars.json_object()
began, used = time.monotonic(), time.process_time()
while time.monotonic() < began + 0.5:
    time.sleep(0.05)
print("nothing goes on", time.process_time() - used < 0.2, flush=True)
"""


def test_grammar_that_takes_too_long_is_refused_and_ends(tmp_path: Path) -> None:
    """What may take it for ever is tried in a process, which is ended, so that no core stays busy with it."""
    folder = save(byte_level(), tmp_path)

    ran = subprocess.run(
        [sys.executable, "-c", ENDLESS, str(folder)], capture_output=True, text=True, check=False, timeout=120
    )

    assert ran.returncode == 0
    assert ran.stdout.splitlines() == [
        *["response_format takes more than 1 s to compile | True"] * 3,
        "nothing goes on True",
    ]
