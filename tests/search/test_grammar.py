"""The query language: what is natural text, arithmetic, a filter; ambiguity; round trips; arbitrary input."""

from __future__ import annotations

import math
import time
from contextlib import suppress
from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from clipmend.search.conditions import (
    check_conditions,
    condition_text,
    conditions_of,
    folder_value,
    fulfils,
    parse_size,
    parse_time,
)
from clipmend.search.gallery import BASE_FIELDS, Condition, FieldType, GalleryError
from clipmend.search.grammar import MAX_CHARACTERS, MAX_CONDITIONS, MAX_TERMS, Query, QueryError, Term, parse_query

FIELDS: dict[str, FieldType] = {
    **BASE_FIELDS,
    "label": "text",
    "stars": "number",
    "photo label": "text",
    "größe": "number",
    "image": "text",
    "a.b-c": "text",
}


def read(text: str) -> Query:
    return parse_query(text, FIELDS)


def only_text(text: str) -> str:
    """The words of a query that is natural language and nothing else."""
    query = read(text)
    assert query.where == ()
    (term,) = query.terms
    assert (term.weight, term.kind) == (1.0, "text")
    return term.value


def seconds(*moment: int) -> float:
    return datetime(*moment).timestamp()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text",
    [
        "a beach without people",
        "a well-known man in a T-shirt",
        "at -5 degrees",
        "-5 degrees",
        "C++ code + ".rstrip(" +"),
        "a clock at 10:30",
        "16:9",
        "note: a cat, and a dog",
        'a sign that says "stop"',
        '"stop" signs',
        'over 3 "friends"',
        'a 5" pipe',
        '12"x12" tiles',
        "1 + 1 = 2"[4:],
        "I <3 cats",
        "größe ist egal",
        "ein Strand ohne Menschen",
        "没有人的海滩",
        "🏖️ without 👥",
        ":-) :smile:",
        "a--b",
        "a – b",
        "it's 100% sure; (really) [x] {y} ~ ^ | \\ / & $ # @ !",
        "-- a",
    ],
)
def test_natural_language_is_taken_as_it_is(text: str) -> None:
    assert only_text(text) == text
    assert only_text(f"  {text}\t\n") == text


@settings(max_examples=50, deadline=None)
@given(st.lists(st.from_regex(r"[^\W\d_]{1,8}(-[^\W\d_]{1,8}){0,2}", fullmatch=True), min_size=1, max_size=12))
def test_words_with_hyphens_inside_are_natural(words: list[str]) -> None:
    assert only_text(" ".join(words)) == " ".join(words)


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ('"a beach"', [(1, "text", "a beach")]),
        ('"a beach" + 0.5 "sunset" - "people"', [(1, "text", "a beach"), (0.5, "text", "sunset"), (-1, "text", "people")]),
        ('"a"+"b"-"c"', [(1, "text", "a"), (1, "text", "b"), (-1, "text", "c")]),
        ('2*"a" - .5 * "b" +1e1 "c"', [(2, "text", "a"), (-0.5, "text", "b"), (10, "text", "c")]),
        ('-"people"', [(-1, "text", "people")]),
        ('- 2 "people"', [(-2, "text", "people")]),
        ('+ "a"', [(1, "text", "a")]),
        ("“a beach” - „people“", [(1, "text", "a beach"), (-1, "text", "people")]),
        (r'"say \"cheese\" \\o/"', [(1, "text", r'say "cheese" \o/')]),
        (r'"C:\pictures"', [(1, "text", r"C:\pictures")]),
        ("image:a.jpg", [(1, "image", "a.jpg")]),
        ('0.5 image:"a b.jpg" - "snow"', [(0.5, "image", "a b.jpg"), (-1, "text", "snow")]),
        ("like:17", [(1, "like", "17")]),
        ('like:"2024/a b.jpg" + like:3', [(1, "like", "2024/a b.jpg"), (1, "like", "3")]),
        ('"folder:x"', [(1, "text", "folder:x")]),
        ('"a" +"b"', [(1, "text", "a"), (1, "text", "b")]),
    ],
)
def test_arithmetic(text: str, terms: list[tuple[float, str, str]]) -> None:
    query = read(text)
    assert [(t.weight, t.kind, t.value) for t in query.terms] == terms
    assert query.where == ()
    assert query.text == text


@pytest.mark.parametrize(
    ("text", "as_arithmetic", "as_text"),
    [
        ("a beach + sunset", '"a beach" + "sunset"', '"a beach + sunset"'),
        ("a beach - people", '"a beach" - "people"', '"a beach - people"'),
        ("a beach -people", '"a beach" - "people"', '"a beach -people"'),
        ('a beach + "sunset"', '"a beach" + "sunset"', r'"a beach + \"sunset\""'),
        ("a beach image:a.jpg", '"a beach" + image:a.jpg', '"a beach image:a.jpg"'),
        ("like:3 at night", 'like:3 + "at night"', '"like:3 at night"'),
        ("a - b folder:x", '"a" - "b" folder:x', '"a - b" folder:x'),
        ('3 "friends" talk', '3 "friends" + "talk"', r'"3 \"friends\" talk"'),
    ],
)
def test_a_bare_text_beside_operators_is_an_error_with_both_readings(text: str, as_arithmetic: str, as_text: str) -> None:
    with pytest.raises(QueryError) as error:
        read(text)
    assert f"in two ways: as arithmetic, {as_arithmetic}, or as one text, {as_text}" in str(error.value)
    assert len(read(as_arithmetic).terms) == 2
    assert len(read(as_text).terms) == 1
    assert read(as_arithmetic).where == read(as_text).where


@pytest.mark.parametrize(
    ("text", "message", "position"),
    [
        ("", "query is empty", None),
        (" \n\t", "query is empty", None),
        ('"a', "begins at character 1 is never closed", 0),
        ('"a" - "b', "begins at character 7 is never closed", 6),
        ("“a", "never closed", 0),
        ('"a" "b"', "write + or - between", 4),
        ("image:a.jpg like:3", "write + or - between", 12),
        ('"a" 2 "b"', "operator is missing before 2", 4),
        ('"a" +', "after + a term is missing", 4),
        ("-", "after - a term is missing", 0),
        ('"a" + - "b"', "missing between the operators + and -", 6),
        ('""', "an empty text", 0),
        ('"a" - " "', "an empty text", 6),
        ('image:" "', "an empty image", 0),
        ('0 "a"', "a weight is from 0.001 to 1000, not 0", 0),
        ('1e999 "a"', "a weight is from", 0),
        ('"a" + 1001 "b"', "a weight is from", 6),
        ("colour:red", "there is no field 'colour' (there are: folder, name, date", 0),
        ("see http://example.org/x.jpg", "no field 'http'", 4),
        ("a cat mood>3", 'put the text in quotes: "a cat mood>3"', 6),
        ("label:", None, None),
        ('label="a"b', "a space is missing", 9),
        ("-folder:x cat", "write folder!=VALUE", 0),
        ("a name: John", "may be meant in two ways", 2),
        ('"photo label":', "lacks a value", 0),
        ("size>big", "'big' is no size", 0),
        ("width:tall", "width is a number", 0),
        ("width>nan", "width is a number", 0),
        ("date:tomorrow", "'tomorrow' is no date", 0),
        ("date:2024-13", "is no date", 0),
        ("date:2023-02-29", "is no date", 0),
        ("date:0000", "is no date", 0),
        ("date!=2024", "date<2024 or for date>2024", 0),
        ("label<a", "no order", 0),
    ],
)
def test_mistakes(text: str, message: str | None, position: int | None) -> None:
    if message is None:  # what looks like one and is none
        assert only_text(text) == text
        return
    with pytest.raises(QueryError) as error:
        read(text)
    assert message in str(error.value)
    assert error.value.position == position


def test_filters() -> None:
    query = read('a dog folder:2024/holiday/ on the beach name:*.jpg label:"big dog" Size>2MB')
    assert query.terms == (Term(1.0, "text", "a dog on the beach"),)
    assert query.where == (
        Condition("folder", "under", "2024/holiday"),
        Condition("name", "like", "*.jpg"),
        Condition("label", "=", "big dog"),
        Condition("size", ">", 2e6),
    )
    assert read("width>=1000").terms == ()
    assert read("width >= 1000 height<5 stars = 3").where == (
        Condition("width", ">=", 1000.0),
        Condition("height", "<", 5.0),
        Condition("stars", "=", 3.0),
    )
    assert read('"photo label":x a.b-c=*.jpg image=y größe>1').where == (
        Condition("photo label", "=", "x"),
        Condition("a.b-c", "=", "*.jpg"),
        Condition("image", "=", "y"),
        Condition("größe", ">", 1.0),
    )
    assert read('label="" folder=. folder:.').where == (
        Condition("label", "=", ""),
        Condition("folder", "=", ""),
        Condition("folder", "under", ""),
    )
    assert read('"a" - "b" label!=cat').where == (Condition("label", "!=", "cat"),)
    assert read("LABEL:cat").where == (Condition("label", "=", "cat"),)
    both = {"a": "text", "A": "text", "B": "text", "b": "text"}
    assert parse_query("A:x", both).where == (Condition("A", "=", "x"),)  # type: ignore[arg-type]
    with pytest.raises(QueryError, match="no field 'Ab'"):
        parse_query("Ab:x", both)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("date:2024", [(">=", (2024, 1, 1)), ("<", (2025, 1, 1))]),
        ("date=2024-12", [(">=", (2024, 12, 1)), ("<", (2025, 1, 1))]),
        ("date:2024-02-29", [(">=", (2024, 2, 29)), ("<", (2024, 3, 1))]),
        ("date:2024-05-31T18:30", [(">=", (2024, 5, 31, 18, 30)), ("<", (2024, 5, 31, 18, 31))]),
        ("date>=2024-05", [(">=", (2024, 5, 1))]),
        ("date>2024-05", [(">=", (2024, 6, 1))]),
        ("date<2024-05", [("<", (2024, 5, 1))]),
        ("date<=2024-05", [("<", (2024, 6, 1))]),
        ("date<=2024-05-31T18:30:05", [("<=", (2024, 5, 31, 18, 30, 5))]),
        ('date:"2024-05-31 18:30:05"', [("=", (2024, 5, 31, 18, 30, 5))]),
    ],
)
def test_dates_are_stretches_of_local_time(text: str, where: list[tuple[str, tuple[int, ...]]]) -> None:
    assert [(c.op, c.value) for c in read(text).where] == [(op, seconds(*moment)) for op, moment in where]


@pytest.mark.parametrize("zone", ["America/New_York", "Asia/Kolkata", "Europe/Berlin", "Pacific/Apia"])
def test_dates_in_other_zones(zone: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if not hasattr(time, "tzset"):
        pytest.skip("no tzset on this system")
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        day = datetime(2011, 10, 1)
        while day.year < 2012:  # with both changes of the clock, and the day that Apia skipped
            start, end = parse_time(f"{day:%Y-%m-%d}")
            assert (start, end) == (day.timestamp(), (day + timedelta(days=1)).timestamp())
            for op in (">=", "<", "=", ">"):
                condition = Condition("date", op, start)  # type: ignore[arg-type]
                assert read(condition_text(condition)).where == (condition,)
            day += timedelta(days=1)
        moment = datetime(2024, 5, 31, 18, 30, tzinfo=timezone(timedelta(hours=-3, minutes=-30)))
        assert parse_time("2024-05-31T18:30-03:30")[0] == moment.timestamp()
        assert parse_time("2024-05-31T18:30Z")[0] == datetime(2024, 5, 31, 18, 30, tzinfo=timezone.utc).timestamp()
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(
    ("text", "size"),
    [("2MB", 2e6), ("1.5 GiB", 1.5 * 2**30), ("300k", 3e5), ("1000", 1e3), (".5kb", 500), ("7B", 7), ("1tb", 1e12), ("1e3", 1e3)],
)
def test_sizes(text: str, size: float) -> None:
    assert parse_size(text) == size


def test_folders() -> None:
    assert [folder_value(f) for f in ("a/b", "/a//b/", "./a/./b", ".", "", "/")] == ["a/b", "a/b", "a/b", "", "", ""]


def test_bounds() -> None:
    assert only_text("x" * MAX_CHARACTERS) == "x" * MAX_CHARACTERS
    with pytest.raises(QueryError, match="at most 2,000 characters, not 2,001"):
        read("x" * (MAX_CHARACTERS + 1))
    assert len(read(" + ".join(['"a"'] * MAX_TERMS)).terms) == MAX_TERMS
    with pytest.raises(QueryError, match="at most 32 terms"):
        read(" + ".join(['"a"'] * (MAX_TERMS + 1)))
    assert len(read("width>1 " * MAX_CONDITIONS).where) == MAX_CONDITIONS
    with pytest.raises(QueryError, match="at most 32 conditions, not 34"):
        read("date:2024 " * 17)
    with pytest.raises(QueryError, match="a weight"):
        Term(math.nan, "text", "a")
    with pytest.raises(QueryError, match="a term is"):
        Term(1.0, "sound", "a")  # type: ignore[arg-type]


# Round trips: whatever a query says can be written and read again.

words = st.text(min_size=1, max_size=20).filter(str.strip)
spiky = st.text(alphabet='ab"“”„\\ +-*:=<>!.5', min_size=1, max_size=12).filter(str.strip)
numbers = st.floats(allow_nan=False, allow_infinity=False)
sizes = st.one_of(st.floats(0.001, 1000), st.integers(1, 1000).map(float))
terms = st.builds(
    lambda size, sign, kind, value: Term(sign * size, kind, value),
    sizes,
    st.sampled_from([1, 1, -1]),
    st.sampled_from(["text", "text", "image", "like"]),
    st.one_of(words, spiky, st.sampled_from(["a beach", "folder:x", "a - b", "0.5", "image:", "“x”"])),
)


def values(type_: FieldType) -> st.SearchStrategy[tuple[str, str | float]]:
    if type_ in ("text", "folder"):
        value = st.one_of(st.text(max_size=12), spiky, st.just(""))
        if type_ == "folder":
            value = value.map(folder_value)
        plain = st.tuples(st.sampled_from(["=", "!="]), value)
        pattern = st.tuples(st.just("like"), value.map(lambda v: folder_value(f"{v}*") if type_ == "folder" else f"?{v}*"))
        under = st.tuples(st.just("under"), value.filter(lambda v: not set("*?") & set(v)))
        return st.one_of(plain, pattern, under) if type_ == "folder" else st.one_of(plain, pattern)
    value = st.one_of(numbers, st.integers(-(10**10), 10**10).map(float), st.just(1714521600.0))
    return st.tuples(st.sampled_from(["=", "!=", "<", "<=", ">", ">="]), value)


conditions = st.sampled_from(sorted(FIELDS)).flatmap(
    lambda name: values(FIELDS[name]).map(lambda said: Condition(name, said[0], said[1]))  # type: ignore[arg-type]
)
queries = st.builds(
    lambda terms, where: Query(tuple(terms), tuple(where), "", FIELDS),
    st.lists(terms, max_size=5),
    st.lists(conditions, max_size=4),
).filter(lambda query: query.terms or query.where)


@settings(max_examples=400, deadline=None)
@given(queries)
@example(Query((Term(1.0, "text", "a\\“b”"),), (), "", FIELDS))
@example(Query((Term(-0.001, "text", "-"),), (Condition("date", ">=", 1e300),), "", FIELDS))
def test_what_is_written_reads_the_same(query: Query) -> None:
    said = str(query)
    assert parse_query(said, FIELDS, limit=len(said)) == query


SIGNS = ['"', "“", "”", "\\", '\\"', "+", "-", "*", ":", "=", "!=", ">=", "<", " ", "  ", "\n", " - ", "\x00", " "]
PARTS = ["image:", "like:", "folder:", "date>=", "date", "2024", "2024-05", "size>", "2MB", "label:", "colour:", "x.jpg"]
WORDS = ["a", "beach", "é", "🏖", "0.5", "2", "1e5", "label"]
pieces = st.sampled_from([*SIGNS, *PARTS, *WORDS])


@settings(max_examples=1500, deadline=None)
@given(st.one_of(st.lists(pieces, max_size=14).map("".join), st.text(max_size=60)))
def test_any_text_is_a_query_or_a_clear_error(text: str) -> None:
    try:
        query = read(text)
    except QueryError as refused:
        position = 0 if refused.position is None else refused.position
        if not (str(refused) and 0 <= position <= len(text)):
            raise
        return
    assert query.terms or query.where
    check_conditions(query.where, FIELDS)
    said = str(query)
    assert parse_query(said, FIELDS, limit=len(said)) == query


@pytest.mark.parametrize(
    "piece",
    [
        '"',
        "\\",
        '\\"',
        "a ",
        "a-",
        "-",
        "- ",
        " ",
        "a:",
        "1 ",
        "1*",
        "1" * 9 + " ",
        "date ",
        "date  =",
        "“",
        "a.",
        "name: ",
        "<",
        'a"',
    ],
)
def test_no_text_takes_long(piece: str) -> None:
    text = (piece * MAX_CHARACTERS)[:MAX_CHARACTERS]
    began = time.perf_counter()
    for candidate in (text, f"a {text[2:]}", f'"{text[2:]}"'):
        with suppress(QueryError):
            str(read(candidate))
    assert time.perf_counter() - began < 1


# When conditions hold: against the plainest reading of the rule.


def matches(pattern: str, text: str) -> bool:
    """Whole-text wildcard match, by the textbook table."""
    row = [True] + [False] * len(text)
    for p in pattern:
        new = [row[0] and p == "*"]
        for i, c in enumerate(text):
            new.append((row[i + 1] or new[i]) if p == "*" else row[i] and p in ("?", c))
        row = new
    return row[-1]


@settings(max_examples=500, deadline=None)
@given(st.text(alphabet="abA*?[]!-.\n", max_size=10), st.text(alphabet="abAB[]!-.\n", max_size=10))
def test_patterns(pattern: str, text: str) -> None:
    assert fulfils({"name": text}, [Condition("name", "like", pattern)]) == matches(pattern.lower(), text.lower())


def test_no_pattern_takes_long() -> None:
    began = time.perf_counter()
    assert not fulfils({"name": "a" * 255}, [Condition("name", "like", "*a" * 100 + "b")])
    assert time.perf_counter() - began < 1


def test_when_conditions_hold() -> None:
    image = {"folder": "2024/holiday", "name": "A.JPG", "width": 10.0}

    def holds(text: str) -> bool:
        return fulfils(image, read(text).where)

    assert all(map(holds, ["folder:2024", "folder:2024/holiday", "folder:.", "name:*.jpg", "name=A.JPG", "width<=10", "name!=b"]))
    assert all(map(holds, ["folder=2024/holiday", "folder!=2024", "folder:2024/*", "width!=11", "width:10 width>9 width<11"]))
    assert not any(
        map(holds, ["folder:202", "folder:2024/holi", "folder=2024", "name:*.png", "name=a.jpg", "width>10", "width:10 width>10"])
    )
    assert not any(map(holds, ["label!=cat", "label:*", "height!=3"]))  # what is not known fulfils nothing


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        (Condition("nose", "=", "x"), "no field 'nose'; its fields: folder, name"),
        (Condition("name", "<", "x"), "does not fit"),
        (Condition("name", "under", "x"), "does not fit"),
        (Condition("width", "like", "x"), "does not fit"),
        (Condition("width", "=", "x"), "no value of it"),
        (Condition("name", "=", 3.0), "no value of it"),
        (Condition("date", "<", math.inf), "no number to compare"),
    ],
)
def test_conditions_that_cannot_be_answered(condition: Condition, message: str) -> None:
    with pytest.raises(GalleryError, match=message):
        check_conditions([condition], BASE_FIELDS)


def test_what_the_grammar_cannot_say_is_refused() -> None:
    with pytest.raises(ValueError, match="without"):
        condition_text(Condition("name", "like", "x"))
    with pytest.raises(ValueError, match="pattern"):
        condition_text(Condition("folder", "under", "a*"))
    assert conditions_of("name", ":", "x", "text") == (Condition("name", "=", "x"),)
