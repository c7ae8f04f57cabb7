"""``clipmend search`` from the outside: table, JSON, sheet, patch, hint."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import Result
from PIL import Image
from typer.testing import CliRunner

import clipmend
from backbones.tiny import clip_model, clip_processor, clip_tokenizer, saved
from clipmend.cli.app import app
from clipmend.negation import PeakPatch, PeakPatchConfig
from clipmend.search import ImageIndex, search
from clipmend.search.searcher import Searcher
from search.fakes import colour_folder

runner = CliRunner()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint, an index of 15 images and a patch that changes ranks (random, its step made long)."""
    home = tmp_path_factory.mktemp("search home")
    tokenizer = clip_tokenizer()
    checkpoint = saved(home / "clip", clip_model(tokenizer), tokenizer, clip_processor())
    colour_folder(home / "photos", 15)
    encoder = clipmend.load(checkpoint)
    ImageIndex.build(encoder, home / "photos", home / "index")
    patch = PeakPatch.untrained(encoder)
    with torch.no_grad():
        patch.ecn.log_alpha += 6
    patch.save_pretrained(home / "patch")
    return home


def run(*arguments: object, **env: str) -> Result:
    result = runner.invoke(app, ["search", *map(str, arguments)], env={"COLUMNS": "200", **env})
    assert result.exit_code == 0, result.output
    return result


def invoke(*arguments: object) -> str:
    return run(*arguments).stdout


def on_terminal(*arguments: object, columns: int = 200) -> str:
    return run(*arguments, COLUMNS=str(columns), FORCE_COLOR="1", TERM="dumb").stdout


def test_table_is_the_librarys_answer(home: Path) -> None:
    output = on_terminal(home / "index", "a dog", "-k", 4)
    index = ImageIndex.open(home / "index")
    hits = search(index, clipmend.load(str(home / "clip")), "a dog", 4)
    assert "4 of 15 images" in output
    rows = [line for line in output.splitlines() if ".png" in line]
    assert len(rows) == 4
    for row, hit in zip(rows, hits, strict=True):
        assert hit.path.name in row
        assert f"{hit.score:.4f}" in row
        cells = [cell.strip() for cell in row.split("│")]
        assert cells[3] == str(index.find(str(hit.path)))
    assert "without patch" not in output


def test_a_patch_shows_both_ranks_and_leaves_the_index_alone(home: Path) -> None:
    before = {p.name: p.read_bytes() for p in (home / "index").iterdir()}
    output = invoke(home / "index", "no dog", "--patch", home / "patch", "-k", 5, "--json")
    assert {p.name: p.read_bytes() for p in (home / "index").iterdir()} == before
    answer = json.loads(output)
    plain = clipmend.load(str(home / "clip"))
    mended = PeakPatch.from_pretrained(home / "patch").apply(plain)
    index = ImageIndex.open(home / "index")
    ranks = {encoder: {hit.path: hit.rank for hit in search(index, encoder, "no dog", 15)} for encoder in (plain, mended)}
    expected = [(str(path), rank, ranks[plain][path]) for path, rank in ranks[mended].items() if rank <= 5]
    assert [(h["file"], h["rank"], h["rank_before"]) for h in answer["hits"]] == expected
    assert [h["file"] for h in answer["before"]] == [str(path) for path, rank in ranks[plain].items() if rank <= 5]
    assert any(h["rank"] != h["rank_before"] for h in answer["hits"])
    assert (answer["total"], answer["hint"]) == (15, None)
    table = on_terminal(home / "index", "no dog", "--patch", home / "patch", "-k", 5)
    assert "rank without patch" in table
    untouched = json.loads(invoke(home / "index", "no dog", "--patch", home / "patch", "--strength", 0, "--json"))
    assert all(h["rank"] == h["rank_before"] for h in untouched["hits"])


def test_rerank_takes_the_score_correction(home: Path) -> None:
    plain = clipmend.load(str(home / "clip"))
    mended = PeakPatch.from_pretrained(home / "patch").apply(plain)
    answer = json.loads(invoke(home / "index", "no dog", "--patch", home / "patch", "-k", 3, "--rerank", 10, "--json"))
    hits = search(ImageIndex.open(home / "index"), mended, "no dog", 3, rerank=10)
    assert [h["file"] for h in answer["hits"]] == [str(h.path) for h in hits]
    assert [h["score"] for h in answer["hits"]] == pytest.approx([h.score for h in hits], abs=1e-5)


def test_sheet(home: Path, tmp_path: Path) -> None:
    sheet = tmp_path / "new folder" / "found 日.png"
    output = on_terminal(home / "index", "no dog", "--patch", home / "patch", "-k", 6, "--sheet", sheet, "--columns", 3)
    assert "found 日.png" in output
    with Image.open(sheet) as picture:
        assert picture.size[0] > 3 * 192
        assert len(picture.getcolors(1 << 24)) > 6
    assert [p.name for p in sheet.parent.iterdir()] == ["found 日.png"]


def test_hint_for_a_negated_query_without_a_patch(home: Path) -> None:
    result = runner.invoke(app, ["search", str(home / "index"), "a street with no car"])
    assert "--patch" in result.stderr
    assert "hint" not in result.stdout
    assert "--patch" in json.loads(invoke(home / "index", "a street with no car", "--json"))["hint"]
    assert "hint" not in runner.invoke(app, ["search", str(home / "index"), "a street"]).output


def test_model_override_and_k_over_the_gallery(home: Path, tmp_path: Path) -> None:
    shutil.copytree(home / "clip", tmp_path / "moved clip")
    answer = json.loads(invoke(home / "index", "a dog", "--model", tmp_path / "moved clip", "-k", 1000, "--json"))
    assert len(answer["hits"]) == 15


def test_a_patch_without_a_score_correction_cannot_rerank(home: Path) -> None:
    encoder = clipmend.load(str(home / "clip"))
    PeakPatch.untrained(encoder, PeakPatchConfig(use_scn=False)).save_pretrained(home / "embeddings only")
    arguments = [str(home / "index"), "no dog", "--patch", str(home / "embeddings only")]
    invoke(*arguments)
    result = runner.invoke(app, ["search", *arguments, "--rerank", "5"])
    assert "--rerank asks for a score correction, and this patch has none" in str(result.exception)


def test_a_patch_of_another_model_says_which_is_whose(home: Path) -> None:
    result = runner.invoke(app, ["search", str(home / "index"), "no dog", "--patch", "scenes"])
    told = str(result.exception)
    assert told.startswith(f"the patch scenes is of the model scenes, and the index {home / 'index'} of {home / 'clip'}: fit one")
    assert "text_width" not in told


def test_the_query_language(home: Path) -> None:
    index = ImageIndex.open(home / "index")
    plain = clipmend.load(str(home / "clip"))
    text = '"a dog" - 0.5 "a cat" width>=6 folder:a'
    expected = Searcher(index, plain).search(text, 3, 1)
    answer = json.loads(invoke(home / "index", text, "-k", 3, "--offset", 1, "--json"))
    assert [(h["id"], h["rank"]) for h in answer["hits"]] == [(hit.id, hit.rank) for hit in expected.hits]
    assert (answer["query"], answer["total"], answer["offset"]) == ('"a dog" - 0.5 "a cat" width>=6 folder:a', 5, 1)
    table = on_terminal(home / "index", text, "-k", 3, "--offset", 1)
    assert "2 to 4 of 5 images that pass the filters, of 15 in " in table
    listed = on_terminal(home / "index", "folder:b")
    assert "score" not in listed
    assert [line.split("│")[-2].strip() for line in listed.splitlines() if ".png" in line] == sorted(
        item.path for item in index.items(next(index.ids())) if item.path.startswith("b/")
    )


def test_images_that_options_name(home: Path) -> None:
    index = ImageIndex.open(home / "index")
    path = index.path(4)
    name = index.items([index.find(str(path)) or 0])[0].path
    by_file = json.loads(invoke(home / "index", "--image", path, "--json"))
    by_name = json.loads(invoke(home / "index", "--like", name, "--json"))
    assert by_file["hits"][0]["file"] == by_name["hits"][0]["file"] == str(path)
    assert by_name["query"] == f"like:{name}"
    both = json.loads(invoke(home / "index", "a dog folder:b", "--like", name, "--json"))
    assert both["query"] == f'"a dog" + like:{name} folder:b'
    assert all(hit["path"].startswith("b/") for hit in both["hits"])


def test_explain(home: Path) -> None:
    arguments = (home / "index", '"no dog" + "a cat"', "--patch", home / "patch", "-k", 2, "--explain")
    answer = json.loads(invoke(*arguments, "--json"))
    for hit in answer["hits"]:
        told = hit["explain"]
        assert (told["rank"], told["rank_before"]) == (hit["rank"], hit["rank_before"])
        assert told["mended_score"] == pytest.approx(hit["score"], abs=1e-6)
        assert told["backbone_score"] == pytest.approx(hit["score_before"])
        assert isinstance(told["correction"], float)
        assert [term["value"] for term in told["terms"]] == ["no dog", "a cat"]
    hit = answer["hits"][0]
    output = on_terminal(*arguments, columns=80)
    rows = output.splitlines()
    place = rows.index(f"   1  {hit['path']}")
    assert f"score {hit['score']:.4f}  cosine {hit['explain']['mended_score']:.4f}" in rows[place + 1]
    assert f"correction {hit['correction']:+.4f}" in rows[place + 1]
    assert f"without patch: rank {hit['rank_before']}, cosine {hit['score_before']:.4f}" in rows[place + 2]
    assert [row.split(maxsplit=1)[1] for row in rows[place + 3 : place + 5]] == ['"no dog"', '"a cat"']
    assert all(len(row) <= 80 for row in rows[1:])
    assert "only with --rerank" in output
    assert "among the first 2 without the patch, no longer with it:" in output
    assert "only with --rerank" not in on_terminal(*arguments, "--rerank", 5)


def test_the_gate_is_on_and_says_what_it_did(home: Path) -> None:
    patched = (home / "index", "--patch", home / "patch", "-k", 15)
    plain = json.loads(invoke(home / "index", "a dog", "-k", 15, "--json"))
    gated = json.loads(invoke(*patched, "a dog", "--json"))
    assert gated["terms"][0]["mended"] is False
    assert [(h["id"], h["score"]) for h in gated["hits"]] == [(h["id"], h["score"]) for h in plain["hits"]]
    every = json.loads(invoke(*patched, "a dog", "--no-gate", "--json"))
    assert every["terms"][0]["mended"] is True
    assert [h["score"] for h in every["hits"]] != [h["score"] for h in plain["hits"]]
    assert plain["terms"][0]["mended"] is None
    assert "embedded as without the patch" in on_terminal(*patched, "a dog")
    assert "--no-gate" in run(*patched, "a dog").stderr
    for arguments in (
        (*patched, "no dog"),
        (*patched, "a dog", "--no-gate"),
        (*patched, '"no dog" + "a cat"'),
        (home / "index", "a dog"),
    ):
        assert "embedded as without" not in on_terminal(*arguments)
    told = on_terminal(*patched, '"no dog" + "a cat"', "--explain").splitlines()
    assert "mended: no dog" in told
    assert "left as it is, for no word in it denies anything: a cat" in told
    assert "left as it is" not in on_terminal(*patched, '"no dog" + "a cat"', "--explain", "--strength", 0)


def test_pipes_get_a_line_an_image(home: Path, tmp_path: Path) -> None:
    """However narrow a terminal would be; what is said about them goes to standard error."""
    piped = run(home / "index", '"no dog" + "a cat"', "--patch", home / "patch", "-k", 3, "--explain", COLUMNS="20")
    answer = json.loads(invoke(home / "index", '"no dog" + "a cat"', "--patch", home / "patch", "-k", 3, "--explain", "--json"))
    names, *rows = [line.split("\t") for line in piped.stdout.splitlines()]
    assert names == [
        *(
            "rank",
            "rank_without_patch",
            "score",
            "id",
            "cosine",
            "cosine_without_patch",
            "correction",
            '"no dog"',
            '"a cat"',
            "path",
        )
    ]
    for row, hit in zip(rows, answer["hits"], strict=True):
        assert row[:4] == [str(hit["rank"]), str(hit["rank_before"]), f"{hit['score']:.4f}", str(hit["id"])]
        assert row[-1] == hit["path"]
    assert "3 of 15 images" in piped.stderr
    assert "only with --rerank" in piped.stderr
    moved = run(home / "index", "folder:b", "--images", tmp_path, "--json")
    assert json.loads(moved.stdout)["hits"][0]["file"].startswith(f"{tmp_path}{os.sep}b")
    listed = run(home / "index", "folder:b")
    assert listed.stdout.splitlines()[0] == "rank\tid\tpath"


def test_paths_alone(home: Path) -> None:
    answer = json.loads(invoke(home / "index", "a dog", "-k", 4, "--json"))
    files = [hit["file"] for hit in answer["hits"]]
    assert invoke(home / "index", "a dog", "-k", 4, "--paths").splitlines() == files
    for null in ("-0", "--null"):
        assert invoke(home / "index", "a dog", "-k", 4, "--paths", null) == "".join(f"{file}\0" for file in files)
    nothing = run(home / "index", "folder:d", "--paths")
    assert nothing.stdout == ""
    assert "no image is in the folder 'd'" in nothing.stderr


def test_json_is_what_the_service_answers(home: Path) -> None:
    requests = pytest.importorskip("clipmend.service.requests")
    with_patch = ("--patch", home / "patch", "--strength", 0.5)
    for query, more in (("no dog", with_patch), ("a dog", ()), ("folder:b", ()), ("a dog", ("--collapse", 0.5))):
        answer = json.loads(invoke(home / "index", query, "-k", 3, "--json", *more))
        own = {"model", "patch", "strength"}
        assert set(answer) == set(requests.SearchAnswer.model_fields) | own
        for hit in [*answer["hits"], *answer["before"]]:
            assert set(hit) - {"copy_files"} == set(requests.SearchHit.model_fields) - {"thumbnail"} | {"file"}
            assert Path(hit["file"]).is_absolute()
            assert (hit["score"] is None) == (query == "folder:b")
        for hit in answer["hits"] + answer["before"]:
            hit["thumbnail"] = None
        requests.SearchAnswer.model_validate(answer)
        assert (answer["patch"], answer["strength"]) == ((str(home / "patch"), 0.5) if more == with_patch else (None, None))


def test_a_patch_changes_nothing_where_there_are_no_words(home: Path) -> None:
    arguments = (home / "index", "--like", 3, "--patch", home / "patch", "-k", 3)
    assert "without" not in on_terminal(*arguments)
    assert "without" not in on_terminal(*arguments, "--explain")
    assert "without" not in invoke(*arguments, "--explain")
    answer = json.loads(invoke(*arguments, "--json"))
    assert (answer["depth"], answer["before"], answer["hits"][0]["rank_before"]) == (0, [], None)


def test_names_that_are_not_utf8(home: Path, tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    odd = os.fsencode(photos) + b"/b\xffyte\n.png"
    try:
        shutil.copy(next((home / "photos").rglob("*.png")), odd)
    except OSError:
        pytest.skip("this file system has no such names")
    shutil.copy(sorted((home / "photos").rglob("*.png"))[-1], photos / "other.png")
    ImageIndex.build(clipmend.load(str(home / "clip")), photos, tmp_path / "index").close()
    piped = invoke(tmp_path / "index", 'like:"b\\xffyte\\n.png"')
    assert piped.splitlines()[1].endswith("\tb\\xffyte\\n.png")
    asked = invoke(tmp_path / "index", "--like", os.fsdecode(b"b\xffyte\n.png"), "--json")
    assert "\\ud" not in asked
    answer = json.loads(asked)
    assert answer["hits"][0]["path"] == "b\\xffyte\n.png"
    assert answer["terms"][0]["value"] == "b\\xffyte\n.png"
    paths = runner.invoke(app, ["search", str(tmp_path / "index"), "folder:.", "--paths", "-0"]).stdout_bytes
    assert odd in paths.split(b"\0")


def test_filters_that_fit_nothing_and_pages_past_the_end_say_so(home: Path) -> None:
    said = "no image is in the folder 'd' or in one inside it; values there: a (5), b (5), c (5)"
    assert f"hint: {said}" in run(home / "index", "a dog folder:d").stderr
    assert json.loads(invoke(home / "index", "folder:d", "--json"))["hint"] == said
    assert "(did you mean 'a'?)" in run(home / "index", "folder:A").stderr
    assert "offset 15 is beyond the end of 15 images" in run(home / "index", "a dog", "--offset", 15).stderr


def test_copies_are_collapsed(home: Path, tmp_path: Path) -> None:
    for number in range(3):
        shutil.copytree(home / "photos", tmp_path / "photos" / str(number))
    ImageIndex.build(clipmend.load(str(home / "clip")), tmp_path / "photos", tmp_path / "index").close()
    answer = json.loads(invoke(tmp_path / "index", "a dog", "-k", 45, "--collapse", 0.999999, "--json"))
    assert answer["total"] == 45
    shown = [hit["file"] for hit in answer["hits"]]
    copies = [file for hit in answer["hits"] for file in hit.get("copy_files", [])]
    assert len({id_ for hit in answer["hits"] for id_ in hit["copies"]}) == len(copies) == 45 - len(shown)
    assert len(shown) <= 15
    assert sorted(shown + copies) == sorted(str(p) for p in (tmp_path / "photos").rglob("*.png"))
    arguments = (tmp_path / "index", "a dog", "-k", 45, "--collapse", 0.999999)
    assert "(and 2 like it)" in on_terminal(*arguments)
    assert f"{len(copies)} images merged" in on_terminal(*arguments)
    piped = run(*arguments)
    assert f"{len(copies)} images merged" in piped.stderr
    names, *rows = [line.split("\t") for line in piped.stdout.splitlines()]
    assert sum(int(row[names.index("copies")]) for row in rows) == len(copies)


def test_other_stores(home: Path, tmp_path: Path) -> None:
    index = ImageIndex.open(home / "index")
    ids = next(index.ids())
    np.save(tmp_path / "vectors.npy", index.vectors(ids))
    expected = json.loads(invoke(home / "index", "a dog", "--json"))
    arguments = (tmp_path / "vectors.npy", "a dog")
    found = json.loads(invoke(*arguments, "--model", home / "clip", "--json"))
    assert [hit["score"] for hit in found["hits"]] == pytest.approx([hit["score"] for hit in expected["hits"]], abs=1e-5)
    for more, message in (
        ((), "name it with --model"),
        (("--model", home / "clip", "--sheet", tmp_path / "x.png"), "--images DIR"),
    ):
        result = runner.invoke(app, ["search", *map(str, arguments), *map(str, more)])
        assert message in str(result.exception)


def test_strength_goes_as_far_as_the_services(home: Path) -> None:
    arguments = ["search", str(home / "index"), "no dog", "--patch", str(home / "patch"), "--strength"]
    assert runner.invoke(app, [*arguments, "3"]).exit_code == 0
    for wrong, said in (("3.1", "less than or equal to 3"), ("-1", "greater than or equal to 0")):
        refused = runner.invoke(app, [*arguments, wrong])
        assert refused.exit_code == 2
        assert said in refused.stderr


LIGHT = """
import sys, time
began = time.perf_counter()
from clipmend.cli.app import app
import clipmend
def load(*args, **options):
    print("seconds", time.perf_counter() - began)
    print("heavy", [m for m in ("torch", "transformers", "pandas", "sklearn", "matplotlib", "qdrant_client") if m in sys.modules])
    raise SystemExit
clipmend.load = load
app(sys.argv[1:])
"""


def test_start_is_light(home: Path) -> None:
    """Until the model is loaded, which needs them, nothing heavy is imported; a query that is wrong is told at once."""
    command = [sys.executable, "-c", LIGHT, "search", str(home / "index"), "a dog folder:a"]
    output = subprocess.run(command, capture_output=True, text=True, timeout=120).stdout
    assert "heavy []" in output, output
    command[-1] = '"a dog'
    failed = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert "never closed" in failed.stderr
    assert "heavy" not in failed.stdout
    command[-1] = "folder:a"  # a list needs no model
    listed = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert "5 of 5 images" in listed.stderr
    assert len(listed.stdout.splitlines()) == 6
    assert "heavy" not in listed.stdout


def test_an_empty_query_is_refused_before_anything_is_loaded(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr(clipmend, "load", refuse)
    for command in (["search", str(home / "index"), " "], ["filter", "scenes", str(home / "photos"), "", "-o", "x.csv"]):
        assert "query is empty" in str(runner.invoke(app, command).exception)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{home}/index", "a dog", "--rerank", "5"], "--rerank needs --patch"),
        (["{home}/index", "a dog", "--strength", "0.5", "--no-gate"], "--strength and --gate need --patch"),
        (["{home}/index", "a dog", "--columns", "3"], "--columns belongs to --sheet"),
        (["{home}/photos", "a dog"], "no image index"),
        (["{home}/index", "a dog + a cat"], 'as arithmetic, "a dog" + "a cat", or as one text'),
        (["{home}/index", "mood:good"], "no field 'mood'"),
        (["{home}/index", "a dog", "--like", "nowhere.png"], "neither the id nor the path"),
        (["{home}/index", "a dog", "--image", "nowhere.png"], "no such file"),
        (["{home}/index", "  "], "list every image that lies in a folder with folder:."),
        (["{home}/index", "a", "red", "dog", "-k", "3"], "quote the whole query, which is one argument: 'a red dog'"),
        (["{home}/index", "--", '- "a dog"', "-k", "3"], "options stand before it"),
        (["{home}/index", "a dog", "-0"], "--null belongs to --paths"),
        (["{home}/index", "a dog", "--paths", "--json"], "leave out --json"),
        (["{home}/index", "like:0000"], "neither the id nor the path"),
        (["{home}/index", "a dog", "--sheet", "x.tiff"], "--sheet writes"),
        (["{home}/index", "a dog", "--model", "{other}"], "cannot be compared"),
        (["{home}/index", "a dog", "--patch", "{home}/photos"], "photos"),
    ],
)
def test_mistakes_are_one_line(
    home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    tokenizer = clip_tokenizer()
    other = saved(tmp_path / "other", clip_model(tokenizer, seed=5), tokenizer, clip_processor())
    with torch.no_grad():
        model = clip_model(tokenizer)
        model.visual_projection.weight += 1
    saved(tmp_path / "other", model)
    filled = [a.format(home=home, other=other) for a in arguments]
    monkeypatch.setattr("sys.argv", ["clipmend", "search", *filled])
    capsys.readouterr()  # saving above shows bars
    with pytest.raises(SystemExit) as stop:
        clipmend.cli.main()
    assert stop.value.code == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert message in error
    assert "Traceback" not in error
