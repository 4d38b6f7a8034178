"""Reading traces: every format, and every way in which a file can be wrong."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from backends.errors import ConfigurationError
from gateway.simulate.traces import Columns, TraceRequest, read_trace

OWN = '{"t":1.5,"i":600,"o":3,"h":[4,9],"c":"a"}\n{"t":0.5,"i":2,"o":1}\n'
MOONCAKE = '{"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47]}\n'
LOG = (
    '{"time":110.0,"request_id":"a","route":"r","operation":"chat","status":200,"total_ms":2000,"key":"dev",'
    '"model":"m","usage":{"prompt_tokens":19,"completion_tokens":42}}\n'
    '{"time":105.0,"request_id":"b","route":"r","operation":"chat","status":200,"total_ms":1000,"tenant":"red",'
    '"usage":{"prompt_tokens":5,"completion_tokens":6}}\n'
    '{"time":106.0,"request_id":"c","route":"r","operation":"chat","status":503,"total_ms":1}\n'
)
AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n"
)
BURSTGPT = (
    "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "5,ChatGPT,472,18,490,Conversation log\n45,GPT-4,1087,0,1087,Conversation log\n"
    "118,GPT-4,417,276,693,Conversation log\n"
)


def written(folder: Path, text: str | bytes, name: str = "trace.txt") -> Path:
    """The path of a file with that content."""
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize(
    ("text", "form", "requests", "skipped"),
    [
        (OWN, "slipstream", [TraceRequest(0, 2, 1, 2), TraceRequest(1, 600, 3, 1, (4, 9), "a")], 0),
        (MOONCAKE, "mooncake", [TraceRequest(0, 6955, 52, 1, (46, 47))], 0),
        (
            LOG,
            "access log",
            [TraceRequest(0, 5, 6, 2, client="red"), TraceRequest(4, 19, 42, 1, client="dev", model="m")],
            1,
        ),
        (AZURE, "azure", [TraceRequest(0, 374, 44, 2), TraceRequest(pytest.approx(4.314579), 396, 109, 3)], 0),
        (
            BURSTGPT,
            "burstgpt",
            [TraceRequest(0, 472, 18, 2, model="ChatGPT"), TraceRequest(113, 417, 276, 4, model="GPT-4")],
            1,
        ),
    ],
)
@pytest.mark.parametrize("is_gzip", [False, True])
def test_trace_format_is_recognised(
    tmp_path: Path, text: str, form: str, requests: list[TraceRequest], skipped: int, is_gzip: bool
) -> None:
    """Every known format is read, plain or compressed, in order of arrival from zero."""
    path = written(tmp_path, gzip.compress(text.encode()) if is_gzip else text)

    trace = read_trace(path)

    assert (trace.format, list(trace.requests), trace.num_skipped) == (form, requests, skipped)
    assert trace.span_s == trace.requests[-1].at_s


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the trace is empty"),
        ("hello world\n", ":1: this is no known format of traces; it begins 'hello world'"),
        ('{"a": 1}\n', ":1: this is no known format"),
        ('{"t": 1, "i"', ":1: this line is torn"),
        (OWN + '{"t":2,"i":5,\n', ":3: this line is torn"),
        (OWN + '\n{"t":2,"i":"5","o":1}\n', ':4: field "i": Expected `int`'),
        (OWN + '{"t":2,"i":5}\n', ':3: field "o": Object missing required field `o`'),
        (OWN + '{"t":-2,"i":5,"o":1}\n', ':3: field "t": Expected `float` >= 0.0'),
        (OWN + '{"t":2,"i":0,"o":1}\n', ':3: field "i": Expected `int` >= 1'),
        (OWN + '{"t":2,"i":5,"o":1,"h":[1,-2]}\n', ':3: field "h": Expected `int` >= 0'),
        (AZURE + "2023-11-16 18:15:50.9951690,39", ":4: this line is torn"),
        (AZURE + "yesterday,396,109\n", ":4: field \"timestamp\": 'yesterday' is no date and time"),
        (AZURE + "2023-11-16 18:15:51,-6,109\n", ":4: field \"contexttokens\": '-6' is no whole number"),
        (AZURE + "2023-11-16 18:15:51,0,109\n", ':4: field "contexttokens": a prompt has at least one token'),
        (BURSTGPT + "nan,GPT-4,1,2,3,x\n", ":5: field \"timestamp\": 'nan' is no number of seconds"),
        ("ContextTokens,GeneratedTokens\n1,2\n", ':1: field "timestamp": the head has no such column'),
        ("Timestamp,Model,Request tokens,Response tokens\n5,x,4,0\n", "no request that was answered"),
        (b'{"t":1,"i":2,"o":1}\n\xff\xfe\n', "this is not UTF-8 text"),
        (gzip.compress(OWN.encode() * 100, mtime=0)[:60], "the gzip data is torn"),
    ],
)
def test_trace_that_is_wrong_names_line_and_field(tmp_path: Path, text: str | bytes, message: str) -> None:
    """Whatever cannot be used is an error that says where it stands."""
    path = written(tmp_path, text)

    with pytest.raises(ConfigurationError) as caught:
        read_trace(path)

    assert str(path) in caught.value.message
    assert message in caught.value.message


CALLS = (
    "id,Created,Tokens In,tokens_out,who,model\n"
    "1,2026-11-22T10:00:02Z,12,3,ann,small\n2,2026-11-22 10:00:00.5,7,9,,large\n3,2026-11-22T10:00:01Z,7,0,bob,large\n"
)


def test_columns_that_are_named_are_read(tmp_path: Path) -> None:
    """In any case; dates, or seconds as here in the second file; who has no answer is left out."""
    columns = Columns.of("at=created, prompt=tokens in,output=tokens_out,client=Who,model=model")
    trace = read_trace(written(tmp_path, CALLS), columns)
    seconds = read_trace(written(tmp_path, "s,i,o\n5.5,1,2\n4,3,4\n"), Columns.of("at=s,prompt=i,output=o"))

    assert (trace.format, trace.num_skipped) == ("columns", 1)
    assert trace.requests == (
        TraceRequest(0, 7, 9, 3, model="large"),
        TraceRequest(1.5, 12, 3, 2, client="ann", model="small"),
    )
    assert seconds.requests == (TraceRequest(0, 3, 4, 3), TraceRequest(1.5, 1, 2, 2))


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ("at=a,prompt=b", "name the column of output too"),
        ("at=a,at=b,prompt=c,output=d", "'at=b' is no FIELD=NAME"),
        ("when=a,prompt=c,output=d", "'when=a' is no FIELD=NAME"),
        ("at=,prompt=c,output=d", "'at=' is no FIELD=NAME"),
        ("", "'' is no FIELD=NAME"),
    ],
)
def test_columns_that_name_none_are_an_error(columns: str, problem: str) -> None:
    """Which says what is missing, or what it knows."""
    with pytest.raises(ConfigurationError, match=problem):
        Columns.of(columns)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a,b,c\n1,2,3\n", r'trace\.txt:1: field "d": the head has no such column'),
        ("a,b,d\nsoon,2,3\n", r"trace\.txt:2: field \"a\": 'soon' is no date and time"),
        ("a,b,d\n1,2\n", r"trace\.txt:2: this line is torn"),
        ("a,b,d\n1,-2,3\n", r"trace\.txt:2: field \"b\": '-2' is no whole number"),
    ],
)
def test_columns_of_a_file_that_has_others_are_an_error(tmp_path: Path, text: str, problem: str) -> None:
    """With line and field."""
    with pytest.raises(ConfigurationError, match=problem):
        read_trace(written(tmp_path, text), Columns.of("at=a,prompt=b,output=d"))
