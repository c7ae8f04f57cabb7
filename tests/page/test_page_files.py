"""What can be checked of the page without a browser: nothing from elsewhere, nothing inline, shapes as the service's own."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest

from page.fake_service import POLICY, FakeService, Refusal

PAGE = {file.name: file.read_text(encoding="utf-8") for file in (files("clipmend") / "service" / "page").iterdir()}


def test_nothing_comes_from_elsewhere() -> None:
    for name, text in PAGE.items():
        addresses = re.findall(
            r"(?:https?:)?//[\w.-]+\.\w+[^\s\"']*", re.sub(r"//.*\n", "\n", text) if name.endswith(".js") else text
        )
        assert [a for a in addresses if "www.w3.org" not in a] == [], name
        assert "@import" not in text
        assert "url(" not in text


def test_no_script_or_style_is_inline() -> None:
    """The service's content security policy would block them."""
    html = PAGE["index.html"]
    assert not re.search(r"\s(?:style|on\w+)\s*=", html)
    assert "<style" not in html
    assert re.findall(r"<script[^>]*>(.*?)</script>", html, re.DOTALL) == [""]
    for name, text in PAGE.items():
        assert not re.search(r"\beval\(|new Function|innerHTML|outerHTML|insertAdjacentHTML|document\.write", text), name


def test_files_that_are_named_are_there() -> None:
    html = PAGE["index.html"]
    named = re.findall(r"(?:href|src)=\"page/([\w.-]+)", html)
    named += [name for text in PAGE.values() for name in re.findall(r"from \"\./([\w.-]+)\"", text)]
    assert len(named) > 8
    assert set(named) <= set(PAGE)
    assert set(PAGE) == {*named, "index.html"}  # and none that nobody asks for
    ids = re.findall(r"\bid=\"([\w-]+)\"", html)
    assert len(ids) == len(set(ids))
    asked = {id for name, text in PAGE.items() if name.endswith(".js") for id in re.findall(r"\$\(\"([\w-]+)\"\)", text)}
    assert asked <= set(ids)
    for refers in re.findall(r"(?:aria-labelledby|aria-controls|aria-describedby|for)=\"([\w-]+)\"", html):
        assert refers in ids


def test_files_are_small() -> None:
    for name, text in PAGE.items():
        assert len(text.splitlines()) < 480, name
    assert sum(len(text.encode()) for text in PAGE.values()) < 90_000


def test_the_fake_answers_as_the_service_does() -> None:
    """Or tests that pass against it would say nothing."""
    pytest.importorskip("fastapi")
    from clipmend.service.requests import About, ErrorAnswer, SearchAnswer
    from clipmend.service.security import PAGE_POLICY

    fake = FakeService()
    fake.search({"query": "a"})
    About.model_validate(fake.about())
    assert set(fake.about()) == set(About.model_fields)
    answer = fake.search({"query": "a", "compare": True})
    SearchAnswer.model_validate({"before": [], **answer})
    assert set(answer) == set(SearchAnswer.model_fields)
    ErrorAnswer.model_validate({"error": {"message": "m", "type": "t"}})
    assert set(POLICY.split("; ")) <= set(PAGE_POLICY.split("; "))


def test_the_fake_fails_when_told() -> None:
    fake = FakeService(failures=[(503, "busy")])
    with pytest.raises(Refusal, match="busy"):
        fake.search({"query": "a"})
    assert fake.search({"query": "a"})["hits"]
