"""Features equal the encoder's own states, survive kills byte for byte, and refuse what is not theirs."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch.nn import functional as F

from clipmend.negation import features as module
from clipmend.negation.features import TextFeatures, extract_image_features, extract_text_features
from helpers import RandomDualEncoder

LAYERS = {"anchor": 1, "peak": 2, "scn_layers": (2, 4)}
WORDS = ["a", "photo", "of", "no", "cat", "dog", "red", "small", "street", "without", "any", "people", "it is", "the", "park"]


def captions(count: int, seed: int = 0) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=rng.randint(1, 15))) for _ in range(count)]


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture
def encoder() -> RandomDualEncoder:
    return RandomDualEncoder()


def half(x: torch.Tensor) -> torch.Tensor:
    return x.half().float()


@pytest.mark.parametrize("in_folder", [False, True])
def test_equal_to_the_encoders_own_states(encoder: RandomDualEncoder, tmp_path: Path, in_folder: bool) -> None:
    texts = captions(90)
    folder = tmp_path / "f" if in_folder else None
    features = extract_text_features(encoder, texts, **LAYERS, directory=folder, batch_size=7, shard_size=20)
    rows = [3, 80, 3, 0, 41]
    batch = features.batch(rows)
    chosen = [texts[row] for row in rows]
    states = encoder.text_states(chosen, [1, 2, 4])
    unit = F.normalize(states.embedding, dim=-1)
    torch.testing.assert_close(batch["embedding"], unit, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(batch["norm"], states.embedding.norm(dim=-1), atol=1e-5, rtol=1e-5)
    assert torch.equal(batch["mask"], states.mask)
    # Half precision keeps 11 bits: a relative 5e-4.
    torch.testing.assert_close(batch["peak_tokens"], half(states.tokens_at(2)), atol=2e-3, rtol=1e-3)
    assert not batch["peak_tokens"][~batch["mask"]].any()
    torch.testing.assert_close(batch["peak_eos"], states.eos_at(2), atol=2e-3, rtol=1e-3)
    torch.testing.assert_close(batch["anchor_eos"], states.eos_at(1), atol=2e-3, rtol=1e-3)
    early = F.normalize(encoder.project(states.pooled_at(2)), dim=-1)
    torch.testing.assert_close(batch["scn"], torch.stack([early, unit], 1), atol=1e-5, rtol=1e-5)
    assert all(value.dtype == (torch.bool if key == "mask" else torch.float32) for key, value in batch.items())
    np.testing.assert_array_equal(features.embedding[rows], batch["embedding"].numpy())
    np.testing.assert_array_equal(features.lengths[rows], states.mask.sum(1).numpy())


def test_each_distinct_caption_is_encoded_once(encoder: RandomDualEncoder) -> None:
    texts = captions(30)
    features = extract_text_features(encoder, texts * 5, **LAYERS)
    assert encoder.texts_seen == len(set(texts))
    assert len(features) == 150
    once, again = features.batch([4]), features.batch([34])
    assert all(torch.equal(once[key], again[key]) for key in once)


def test_followed_by_equals_one_extraction(encoder: RandomDualEncoder, tmp_path: Path) -> None:
    texts = captions(50)
    parts = [
        extract_text_features(encoder, part, **LAYERS, shard_size=8, directory=tmp_path / str(len(part)))
        for part in (texts[:30], texts[30:])
    ]
    joined = parts[0].followed_by(parts[1])
    assert len(joined) == 50
    rows = [49, 0, 31, 29, 30, 3]
    for features in (joined, joined.in_memory(), parts[0].in_memory().followed_by(parts[1].in_memory())):
        wanted, got = extract_text_features(encoder, texts, **LAYERS).batch(rows), features.batch(rows)
        for key in wanted:
            torch.testing.assert_close(got[key], wanted[key], atol=2e-3, rtol=1e-3)
    other = extract_text_features(encoder, texts, anchor=1, peak=3, scn_layers=(3, 4))
    with pytest.raises(ValueError, match="peak is 2 in one and 3 in the other"):
        joined.followed_by(other)


def test_memory_folder_and_reopened_folder_agree_exactly(encoder: RandomDualEncoder, tmp_path: Path) -> None:
    texts = captions(70)
    memory = extract_text_features(encoder, texts, **LAYERS, batch_size=10, shard_size=20)
    folder = extract_text_features(encoder, texts, **LAYERS, batch_size=10, shard_size=20, directory=tmp_path / "f")
    assert len(folder.shards) > 1
    assert len(memory.shards) == 1
    shuffled = [texts[row] for row in np.random.default_rng(0).permutation(70)]
    reopened = TextFeatures.open(tmp_path / "f", shuffled, verify=True)
    rows = np.arange(69, -1, -3)
    wanted = memory.batch(rows)
    for other in (folder, folder.in_memory(), TextFeatures.open(tmp_path / "f", texts)):
        got = other.batch(rows)
        assert all(torch.equal(wanted[key], got[key]) for key in wanted)
    np.testing.assert_array_equal(reopened.embedding[shuffled.index(texts[5])], memory.embedding[5])
    part = folder.subset(rows)
    assert len(part) == len(rows)
    assert torch.equal(part.batch([1])["peak_eos"], folder.batch([66])["peak_eos"])


def slow_batch(features: TextFeatures, rows: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Token rows and mask by three plain loops."""
    stored = []
    for shard in features.shards:
        at = 0
        for length in shard["lengths"]:
            stored.append(shard["tokens"][at : at + length])
            at += length
    wanted = [stored[features.index[row]] for row in rows]
    width = max((len(tokens) for tokens in wanted), default=0)
    padded = np.zeros((len(rows), width, features.text_width), np.float32)
    mask = np.zeros((len(rows), width), bool)
    for row, tokens in enumerate(wanted):
        padded[row, : len(tokens)] = tokens
        mask[row, : len(tokens)] = True
    return padded, mask


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_ragged_gather_equals_a_slow_loop(data: st.DataObject) -> None:
    shards = []
    for sizes in data.draw(st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=5), min_size=1, max_size=4)):
        rng = np.random.default_rng(len(shards))
        dense = {name: rng.normal(size=(len(sizes), 3)).astype(np.float32) for name in ("embedding", "peak_eos", "anchor_eos")}
        shards.append(
            {
                **dense,
                "scn": rng.normal(size=(len(sizes), 2, 3)).astype(np.float32),
                "norm": rng.normal(size=len(sizes)).astype(np.float32),
                "lengths": np.array(sizes, np.int64),
                "tokens": rng.normal(size=(sum(sizes), 3)).astype(np.float16),
            }
        )
    total = sum(len(shard["norm"]) for shard in shards)
    index = np.array(data.draw(st.lists(st.integers(0, total - 1), min_size=1, max_size=12)))
    features = TextFeatures(1, 2, (1, 2), 3, 3, index, tuple(shards))
    rows = data.draw(st.lists(st.integers(0, len(index) - 1), max_size=10))
    batch = features.batch(rows)
    padded, mask = slow_batch(features, rows)
    np.testing.assert_array_equal(batch["peak_tokens"].numpy(), padded)
    np.testing.assert_array_equal(batch["mask"].numpy(), mask)
    everything = np.concatenate([shard["scn"] for shard in shards])
    np.testing.assert_array_equal(batch["scn"].numpy(), everything[index[rows]] if rows else np.zeros((0, 2, 3), np.float32))
    joined = features.in_memory().batch(torch.tensor(rows, dtype=torch.long))
    assert all(torch.equal(batch[key], joined[key]) for key in batch)


def test_empty_scn_layers_and_single_rows(encoder: RandomDualEncoder, tmp_path: Path) -> None:
    features = extract_text_features(encoder, ["a cat"], anchor=1, peak=3, scn_layers=(), directory=tmp_path / "f")
    batch = features.batch([0])
    assert batch["scn"].shape == (1, 0, encoder.embed_dim)
    assert batch["peak_tokens"].shape == (1, 4, encoder.text_width)
    with pytest.raises(IndexError, match=r"asked of 1 captions"):
        features.batch([1])
    with pytest.raises(IndexError, match=r"not a mask"):
        features.batch(np.array([True]))


# Killed and resumed


class Killed(BaseException):
    """Stands for a kill: nothing in the library may catch it."""


@pytest.mark.parametrize("seed", range(8))
def test_killed_anywhere_the_bytes_are_those_of_an_uninterrupted_run(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    texts = captions(60, seed)
    options = {**LAYERS, "batch_size": 4, "shard_size": 9}
    extract_text_features(RandomDualEncoder(), texts, **options, directory=tmp_path / "whole")
    folder = tmp_path / "killed"
    done = False
    kills = 0
    original_save, original_states = np.save, RandomDualEncoder.text_states
    while not done:
        left = [rng.randint(1, 12), rng.randint(4, 30)]  # passes and files until the kill: enough for some unit, at times

        def states(self, *args, left=left, **kwargs):  # type: ignore[no-untyped-def]
            left[0] -= 1
            if left[0] < 0:
                raise Killed
            return original_states(self, *args, **kwargs)

        def save(file, *args, left=left, **kwargs):  # type: ignore[no-untyped-def]
            left[1] -= 1
            if left[1] < 0:
                Path(file).write_bytes(b"\x93NUMPY half a fil")
                raise Killed
            original_save(file, *args, **kwargs)

        monkeypatch.setattr(RandomDualEncoder, "text_states", states)
        monkeypatch.setattr(module.UnitFolder.run.__globals__["np"], "save", save)
        try:
            # Other sizes on resuming: the folder's own win.
            extract_text_features(
                RandomDualEncoder(), texts, **LAYERS, batch_size=4 + kills, shard_size=9 + kills, directory=folder
            )
            done = True
        except Killed:
            kills += 1
            assert kills < 60
    monkeypatch.undo()
    assert kills > 0
    assert tree(folder) == tree(tmp_path / "whole")


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("passes", [0, 3])
def test_an_error_keeps_whole_units_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, passes: int, error: type[BaseException]
) -> None:
    (tmp_path / "mine").mkdir()
    original = np.save

    def save(file, *args, **kwargs):  # type: ignore[no-untyped-def]
        if len(list((tmp_path / "mine" / "new" / "features").glob("unit-?????"))) == passes:
            Path(file).write_bytes(b"half")
            raise error("disk full")
        original(file, *args, **kwargs)

    monkeypatch.setattr(np, "save", save)
    folder = tmp_path / "mine" / "new" / "features"
    with pytest.raises(error, match="disk full"):
        extract_text_features(RandomDualEncoder(), captions(60), **LAYERS, shard_size=9, directory=folder)
    stays = ["manifest.json", *(f"unit-{k:05d}" for k in range(passes))] if passes else []
    assert sorted(path.name for path in folder.glob("*")) == stays
    assert (tmp_path / "mine").is_dir()  # was there before
    assert (tmp_path / "mine" / "new").exists() == bool(passes)


PROGRAM = """
import sys, time
sys.path.insert(0, {tests!r})
from helpers import RandomDualEncoder
from clipmend.negation.features import extract_text_features
class Slow(RandomDualEncoder):
    def text_states(self, *args, **kwargs):
        time.sleep(0.03)
        return super().text_states(*args, **kwargs)
texts = open({texts!r}).read().split("\\n")
print("ready", flush=True)
extract_text_features(Slow(), texts, anchor=1, peak=2, scn_layers=(2, 4), batch_size=4, shard_size=10, directory={folder!r})
"""


def test_sigkill_in_another_process(tmp_path: Path) -> None:
    texts = captions(100, 5)
    (tmp_path / "texts").write_text("\n".join(texts))
    extract_text_features(RandomDualEncoder(), texts, **LAYERS, batch_size=4, shard_size=10, directory=tmp_path / "whole")
    folder = tmp_path / "killed"
    program = PROGRAM.format(tests=str(Path(__file__).parents[1]), texts=str(tmp_path / "texts"), folder=str(folder))
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    deadline = time.monotonic() + 60
    while len(list(folder.glob("unit-*"))) < 3 and time.monotonic() < deadline:
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    finished = sum(1 for path in folder.glob("unit-*") if ".tmp-" not in path.name)
    assert 2 <= finished < 10
    # What a kill may leave: half a unit, half a manifest beside the whole one.
    (folder / "unit-00007.tmp-1").mkdir()
    (folder / "unit-00007.tmp-1" / "tokens.npy").write_bytes(b"half")
    (folder / "manifest.json.tmp-1").write_bytes(b"{")
    encoder = RandomDualEncoder()
    extract_text_features(encoder, texts, **LAYERS, batch_size=4, shard_size=10, directory=folder)
    assert encoder.texts_seen < len(set(texts))
    assert tree(folder) == tree(tmp_path / "whole")


@pytest.mark.parametrize("damage", ["cut", "flip", "lost file", "lost digest", "lost unit"])
def test_damaged_units_are_reported_and_made_again(encoder: RandomDualEncoder, tmp_path: Path, damage: str) -> None:
    texts = captions(40)
    folder = tmp_path / "f"
    options = {**LAYERS, "batch_size": 4, "shard_size": 10, "directory": folder}
    extract_text_features(encoder, texts, **options)
    before = tree(folder)
    file = folder / "unit-00001" / ("unit.json" if damage == "lost digest" else "tokens.npy")
    content = bytearray(file.read_bytes())
    if damage == "cut":
        file.write_bytes(content[:-10])
    elif damage == "flip":
        content[-3] ^= 1
        file.write_bytes(content)
    elif damage == "lost unit":
        file.parent.rename(tmp_path / "elsewhere")
    else:
        file.unlink()
    with pytest.raises(ValueError, match=r"unit-00001.*run the extraction again"):
        TextFeatures.open(folder, texts, verify=True)
    seen = encoder.texts_seen
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        extract_text_features(encoder, texts, **options)
    assert encoder.texts_seen - seen == 10  # that unit alone
    assert damage == "lost unit" or any("made again" in str(entry.message) for entry in caught)
    assert tree(folder) == before


# Refusals


def test_a_folder_of_something_else_is_refused(encoder: RandomDualEncoder, tmp_path: Path) -> None:
    texts, folder = captions(12), tmp_path / "f"
    extract_text_features(encoder, texts, **LAYERS, directory=folder)
    before = tree(folder)
    with pytest.raises(ValueError, match=r"made from something else \(.*texts_sha256"):
        extract_text_features(encoder, [*texts[:-1], "another"], **LAYERS, directory=folder)
    with pytest.raises(ValueError, match=r"made from something else \(backbone.text"):
        extract_text_features(RandomDualEncoder(seed=1), texts, **LAYERS, directory=folder)
    with pytest.raises(ValueError, match=r"peak: 2 there, 3 now"):
        extract_text_features(encoder, texts, anchor=1, peak=3, scn_layers=(2, 4), directory=folder)
    with pytest.raises(ValueError, match=r"other captions"):
        TextFeatures.open(folder, ["a cat"])
    with pytest.raises(ValueError, match=r"holds no text features"):
        TextFeatures.open(tmp_path, texts)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "holiday.jpg").write_bytes(b"x")
    with pytest.raises(ValueError, match=r"is not empty and holds no text features"):
        extract_text_features(encoder, texts, **LAYERS, directory=tmp_path / "full")
    with pytest.raises(ValueError, match=r"is a file"):
        extract_text_features(encoder, texts, **LAYERS, directory=tmp_path / "full" / "holiday.jpg")
    assert tree(folder) == before


def test_half_a_folder_by_another_version_is_refused_a_whole_one_is_read(encoder: RandomDualEncoder, tmp_path: Path) -> None:
    texts, folder = captions(30), tmp_path / "f"
    extract_text_features(encoder, texts, **LAYERS, shard_size=10, directory=folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["made_by"]["torch"] = "1.0"
    (folder / "manifest.json").write_text(json.dumps(manifest))
    assert len(extract_text_features(encoder, texts, **LAYERS, directory=folder)) == 30
    for path in (folder / "unit-00001").iterdir():
        path.unlink()
    (folder / "unit-00001").rmdir()
    with pytest.raises(ValueError, match=r"unfinished text features begun by .*'torch': '1.0'"):
        extract_text_features(encoder, texts, **LAYERS, directory=folder)
    (folder / "manifest.json").write_text("{")
    with pytest.raises(ValueError, match=r"is damaged"):
        extract_text_features(encoder, texts, **LAYERS, directory=folder)


def test_two_writers_at_once_are_refused(encoder: RandomDualEncoder, tmp_path: Path) -> None:
    pytest.importorskip("fcntl")
    texts, folder = captions(30), tmp_path / "f"

    class Nested(RandomDualEncoder):
        def text_states(self, *args, **kwargs):  # type: ignore[no-untyped-def]
            with pytest.raises(ValueError, match=r"another process"):
                extract_text_features(encoder, texts, **LAYERS, directory=folder)
            return super().text_states(*args, **kwargs)

    assert len(extract_text_features(Nested(), texts, **LAYERS, directory=folder)) == 30


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ([], "at least one caption"),
        ("a cat", "at least one caption"),
        (["a", 3], "caption 1 is int"),
        ([None], "caption 0 is NoneType"),
    ],
)
def test_bad_texts(encoder: RandomDualEncoder, texts: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        extract_text_features(encoder, texts, **LAYERS)


@pytest.mark.parametrize("layers", [{"anchor": 0, "peak": 2, "scn_layers": ()}, {"anchor": 1, "peak": 2, "scn_layers": (5,)}])
def test_layers_that_do_not_exist(encoder: RandomDualEncoder, layers: dict) -> None:
    with pytest.raises(ValueError, match=r"text layers 1\.\.4"):
        extract_text_features(encoder, ["a"], **layers)


def test_states_that_are_not_finite_name_the_caption() -> None:
    encoder = RandomDualEncoder()
    encoder.token.weight[encoder._ids("poison")[1]] = float("nan")
    with pytest.raises(ValueError, match=r"for 'two poison' are not finite"):
        extract_text_features(encoder, ["one", "two poison"], **LAYERS)


def test_odd_texts(encoder: RandomDualEncoder, tmp_path: Path) -> None:
    texts = ["", "   ", "\n", "🐈 no 🐕", "déjà vu", "a\ud800b"]
    features = extract_text_features(encoder, texts, **LAYERS, directory=tmp_path / "f")
    assert features.lengths.tolist() == [2, 2, 2, 5, 4, 3]


def test_long_captions_are_reported_once(encoder: RandomDualEncoder) -> None:
    texts = [f"{'word ' * 40}{k}" for k in range(10)]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        extract_text_features(encoder, texts, **LAYERS, batch_size=2)
    assert [str(entry.message) for entry in caught] == ["10 of 10 distinct captions exceed 20 tokens and were truncated"]
    with pytest.raises(ValueError, match="longer than"):
        extract_text_features(encoder, texts, **LAYERS, on_long="error")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        extract_text_features(encoder, texts, **LAYERS, on_long="truncate")


# Images


def pictures(folder: Path, count: int) -> list[Path]:
    folder.mkdir()
    rng = np.random.default_rng(0)
    paths = []
    for k in range(count):
        paths.append(folder / f"näme {k}.png")
        Image.fromarray(rng.integers(0, 256, (12, 10, 3), dtype=np.uint8)).save(paths[-1])
    return paths


def test_image_features(encoder: RandomDualEncoder, tmp_path: Path) -> None:
    paths = pictures(tmp_path / "images", 23)
    plain = extract_image_features(encoder, paths, batch_size=5)
    assert plain.dtype == np.float32
    np.testing.assert_allclose(plain, encoder.encode_images(paths).numpy(), atol=1e-6)
    kept = extract_image_features(encoder, paths, tmp_path / "f", batch_size=5, shard_size=10)
    np.testing.assert_array_equal(kept, extract_image_features(encoder, paths, batch_size=5, shard_size=10))
    passes = encoder.image_passes
    np.testing.assert_array_equal(extract_image_features(encoder, paths, tmp_path / "f"), kept)
    assert encoder.image_passes == passes
    # The same pictures elsewhere are the same pictures; a changed one is not.
    moved = [path.rename(tmp_path / f"{k}.png") for k, path in enumerate(paths)]
    np.testing.assert_array_equal(extract_image_features(encoder, moved, tmp_path / "f"), kept)
    Image.new("RGB", (3, 3)).save(moved[4])
    with pytest.raises(ValueError, match="images_sha256"):
        extract_image_features(encoder, moved, tmp_path / "f")
    with pytest.raises(ValueError, match=r"image 0, .*nowhere.png, cannot be read"):
        extract_image_features(encoder, [tmp_path / "nowhere.png"], tmp_path / "g")
    assert extract_image_features(encoder, []).shape == (0, encoder.embed_dim)


def test_image_features_of_open_images_killed_and_resumed(encoder: RandomDualEncoder, tmp_path: Path) -> None:
    opened = [Image.open(path) for path in pictures(tmp_path / "images", 12)]
    whole = extract_image_features(encoder, opened, tmp_path / "whole", batch_size=2, shard_size=4)

    class Dying(RandomDualEncoder):
        def encode_images(self, *args, **kwargs):  # type: ignore[no-untyped-def]
            if self.image_passes == 3:
                raise Killed
            return super().encode_images(*args, **kwargs)

    with pytest.raises(Killed):
        extract_image_features(Dying(), opened, tmp_path / "f", batch_size=2, shard_size=4)
    np.testing.assert_array_equal(extract_image_features(encoder, opened, tmp_path / "f"), whole)
    assert tree(tmp_path / "f") == tree(tmp_path / "whole")
