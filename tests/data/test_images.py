"""The image loader against the zoo: every pixel that must be right, every refusal that must name its file."""

from __future__ import annotations

import io
import os
import pickle
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageFile

from clipmend.data.images import DEFAULT_MAX_PIXELS, ImageError, contact_sheet, display_path, find_images, open_image
from data.zoo import BLUE, GREEN, RED, WHITE, Animal, bomb_png, halves, make_zoo, noisy, rotated, saved


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Animal]:
    return make_zoo(tmp_path_factory.mktemp("the zoo"))


def test_every_good_animal_opens_with_the_right_pixels(zoo: dict[str, Animal]) -> None:
    wrong = []
    for name, animal in zoo.items():
        if animal.size is None:
            continue
        image = open_image(animal.path)
        if image.mode != "RGB" or image.size != animal.size:
            wrong.append(f"{name}: {image.mode} {image.size}, expected RGB {animal.size}")
        for at, colour in animal.pixels.items():
            seen = image.getpixel(at)
            if max(abs(a - b) for a, b in zip(seen, colour, strict=True)) > animal.tolerance:
                wrong.append(f"{name}: {seen} at {at}, expected {colour}")
    assert not wrong, "\n".join(wrong)
    assert sum(animal.size is not None for animal in zoo.values()) > 30


def test_every_bad_animal_is_refused_by_name_and_reason(zoo: dict[str, Animal]) -> None:
    refused = {name: animal for name, animal in zoo.items() if animal.size is None}
    assert len(refused) > 8
    for name, animal in refused.items():
        with pytest.raises(ImageError) as caught:
            open_image(animal.path)
        assert name in str(caught.value), f"{name}: the message does not name the file: {caught.value}"
        assert animal.reason in caught.value.reason, f"{name}: {caught.value.reason}"
        assert isinstance(caught.value, ValueError)


def test_str_path_file_object_and_pil_image_give_the_same_picture(zoo: dict[str, Animal]) -> None:
    path = zoo["exif 6.jpg"].path
    expected = np.asarray(open_image(path))
    assert np.array_equal(expected, np.asarray(open_image(str(path))))
    assert np.array_equal(expected, np.asarray(open_image(io.BytesIO(path.read_bytes()))))
    with Image.open(path) as lazily:
        assert np.array_equal(expected, np.asarray(open_image(lazily)))


def test_a_pil_image_is_left_as_it_was() -> None:
    source = halves()
    opened = open_image(source)
    opened.putpixel((0, 0), GREEN)
    assert source.getpixel((0, 0)) == RED


def test_the_picture_outlives_its_file(tmp_path: Path) -> None:
    path = tmp_path / "gone.png"
    path.write_bytes(saved(halves(), "PNG"))
    image = open_image(path)
    path.unlink()
    assert image.getpixel((0, 0)) == RED
    assert "exif" not in image.info or 0x0112 not in image.getexif()


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda p: None, "no such file"),
        (lambda p: p.mkdir(), "is a folder"),
        (lambda p: p.symlink_to(p), "cannot be opened"),
        (lambda p: p.symlink_to(p.with_name("nowhere")), "link to a file that does not exist"),
        (lambda p: os.mkfifo(p), "not a regular file"),
    ],
)
def test_what_is_not_a_file_is_refused_at_once(tmp_path: Path, make: object, reason: str) -> None:
    path = tmp_path / "thing.jpg"
    make(path)  # type: ignore[operator]
    with pytest.raises(ImageError, match=r"thing\.jpg.*" + reason):
        open_image(path)


def test_a_forbidden_file_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "secret.png"
    path.write_bytes(saved(halves(), "PNG"))
    path.chmod(0)
    if os.access(path, os.R_OK):  # root may read anything, so the refusal is made by hand

        def refuse(*_: object, **__: object) -> object:
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr("builtins.open", refuse)
    with pytest.raises(ImageError, match=r"secret\.png.*may not be read"):
        open_image(path)


def test_another_type_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="not int"):
        open_image(3)  # type: ignore[arg-type]


def test_the_pixel_cap_acts_before_decoding_and_can_be_lifted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "big.png"
    path.write_bytes(saved(halves(size=(300, 100)), "PNG"))

    def never(self: object) -> None:
        raise AssertionError("decoded")

    with monkeypatch.context() as patched:
        patched.setattr(ImageFile.ImageFile, "load", never)
        with pytest.raises(ImageError, match="30,000 pixels, over the limit of 29,999"):
            open_image(path, max_pixels=29_999)
    assert open_image(path, max_pixels=30_000).size == (300, 100)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)  # Pillow's own limit gives way to ours, and is still there afterwards
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert open_image(path, max_pixels=None).size == (300, 100)
    assert Image.MAX_IMAGE_PIXELS == 100


def test_a_bomb_past_the_cap_is_an_image_error_even_without_a_limit() -> None:
    with pytest.raises(ImageError):  # the header promises 40 kilopixels that are not there
        open_image(io.BytesIO(bomb_png(200, 200)), max_pixels=None)
    assert DEFAULT_MAX_PIXELS == 100_000_000


def test_truncation_anywhere_is_refused_or_complete() -> None:
    for data in (saved(noisy(), "PNG"), saved(noisy(), "GIF"), saved(noisy(), "WEBP", lossless=True), saved(noisy(), "TIFF")):
        for cut in range(0, len(data), max(1, len(data) // 40)):
            try:
                image = open_image(io.BytesIO(data[:cut]))
            except ImageError:
                continue
            assert image.size == (64, 64)


def test_random_damage_never_escapes_as_another_error() -> None:
    rng = np.random.default_rng(3)
    animals = [saved(noisy((24, 24)), f) for f in ("PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF", "PPM", "ICO", "TGA")]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for data in animals:
            for _ in range(150):
                damaged = bytearray(data)
                for at in rng.integers(0, len(data), rng.integers(1, 8)):
                    damaged[at] = rng.integers(0, 256)
                try:
                    assert open_image(io.BytesIO(bytes(damaged)), max_pixels=4_000_000).mode == "RGB"
                except ImageError:
                    continue


def test_draft_is_smaller_but_never_too_small() -> None:
    data = saved(noisy((800, 480)), "JPEG")
    exact, draft = open_image(io.BytesIO(data)), open_image(io.BytesIO(data), draft_size=100)
    assert exact.size == (800, 480)
    assert draft.size == (200, 120)
    assert open_image(io.BytesIO(data), draft_size=(400, 300)).size == (800, 480)
    assert open_image(io.BytesIO(saved(halves(), "PNG")), draft_size=5).size == (40, 20)


def test_an_upright_jpeg_is_decoded_and_not_copied(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Of large photographs a copy is a good part of the work; one that lies on its side is still turned."""
    path = tmp_path / "a.jpg"
    noisy((60, 40)).save(path)
    expected = np.asarray(Image.open(path).convert("RGB"))
    copies: list[str] = []
    copy = Image.Image.copy
    monkeypatch.setattr(Image.Image, "copy", lambda image: copies.append(image.mode) or copy(image))
    picture = open_image(path)
    assert copies == []
    path.unlink()
    assert np.array_equal(np.asarray(picture), expected)
    assert np.array_equal(np.asarray(pickle.loads(pickle.dumps(picture))), expected)
    assert np.array_equal(np.asarray(open_image(picture)), expected)
    assert np.array_equal(np.asarray(picture.resize((8, 8))), np.asarray(Image.fromarray(expected).resize((8, 8))))
    path.write_bytes(rotated(halves(), 6))
    assert open_image(path).size == (20, 40)


def test_threads_agree(zoo: dict[str, Animal]) -> None:
    expected = np.asarray(open_image(zoo["plain.png"].path))
    bad: list[str] = []

    def work() -> None:
        for _ in range(30):
            if not np.array_equal(expected, np.asarray(open_image(zoo["plain.png"].path))):
                bad.append("different pixels")
            try:
                open_image(zoo["bomb.png"].path)
                bad.append("the bomb opened")
            except ImageError:
                pass

    limit = Image.MAX_IMAGE_PIXELS
    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not bad
    assert limit == Image.MAX_IMAGE_PIXELS


def test_image_error_survives_pickling() -> None:
    error = pickle.loads(pickle.dumps(ImageError("a.png", "is odd")))
    assert (str(error), error.source, error.reason) == ("a.png: is odd", "a.png", "is odd")


def test_find_images_is_recursive_sorted_and_ignores_the_rest(tmp_path: Path) -> None:
    for name in ("b.JPG", "a.png", "sub/deep/c.webp", "notes.txt", ".hidden.png", ".cache/d.png", "sub/é 図.gif", "noext"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (tmp_path / "folder.jpg").mkdir()
    found = [p.relative_to(tmp_path).as_posix() for p in find_images(tmp_path)]
    assert found == ["a.png", "b.JPG", "sub/deep/c.webp", "sub/é 図.gif"]


def test_find_images_follows_links_once_and_ends_in_loops(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    (root / "z real").mkdir(parents=True)
    outside.mkdir()
    (root / "z real" / "x.png").touch()
    (outside / "y.png").touch()
    (root / "loop").symlink_to(root)
    (root / "a link to real").symlink_to(root / "z real")
    (root / "out").symlink_to(outside)
    (outside / "back").symlink_to(root)
    (root / "self.png").symlink_to(root / "self.png")
    (root / "file link.png").symlink_to(outside / "y.png")
    found = [p.relative_to(root).as_posix() for p in find_images(root)]
    assert found == ["file link.png", "out/y.png", "self.png", "z real/x.png"]


@pytest.mark.skipif(os.name != "posix" or os.uname().sysname == "Darwin", reason="the file system refuses such names")
def test_any_bytes_in_a_name(tmp_path: Path) -> None:
    raw = os.path.join(os.fsencode(tmp_path), b"caf\xe9 \xff\n.png")
    with open(raw, "wb") as file:
        file.write(saved(halves(), "PNG"))
    with open(os.path.join(os.fsencode(tmp_path), b"bad \xfe.png"), "wb") as file:
        file.write(b"no")
    bad, good = find_images(tmp_path)
    assert open_image(good).size == (40, 20)
    assert display_path(good).endswith("caf\\xe9 \\xff\\n.png")
    with pytest.raises(ImageError) as caught:
        open_image(bad)
    str(caught.value).encode("utf-8")  # printable anywhere
    contact_sheet([good], [str(good)])


def test_find_images_says_what_it_cannot_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.png").touch()
    (tmp_path / "closed").mkdir()
    real = os.scandir

    def scandir(path: object) -> object:
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied")
        return real(path)  # type: ignore[call-overload]

    monkeypatch.setattr(os, "scandir", scandir)
    reported: list[tuple[Path, str]] = []
    assert [p.name for p in find_images(tmp_path, on_error=lambda p, r: reported.append((p, r)))] == ["a.png"]
    assert reported == [(tmp_path / "closed", "cannot be listed (Permission denied)")]
    with pytest.warns(UserWarning, match="closed"):
        find_images(tmp_path)


def test_find_images_wants_a_folder(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        find_images(tmp_path / "nowhere")
    (tmp_path / "f.png").touch()
    with pytest.raises(NotADirectoryError, match=r"f\.png"):
        find_images(tmp_path / "f.png")


def test_contact_sheet_shows_each_image_in_its_tile(zoo: dict[str, Animal]) -> None:
    red, blue = Image.new("RGB", (50, 50), RED), Image.new("RGB", (50, 20), BLUE)
    sheet = contact_sheet(
        [red, blue, zoo["text.jpg"].path], ["one", "日本 🐈 \udcff \x00 " + "long " * 50, ""], columns=2, tile=100
    )
    assert sheet.mode == "RGB"
    assert sheet.width == 2 * 108 + 8
    assert sheet.getpixel((58, 58)) == RED
    assert sheet.getpixel((108 + 58, 58)) == BLUE
    assert sheet.getpixel((108 + 58, 15)) != BLUE  # letterboxed, not stretched
    caption_row = np.asarray(sheet)[109:130, 8:108]
    assert caption_row.min() < 100  # ink under the first tile
    third = np.asarray(sheet)[150:, :100]
    assert third.min() < 200  # the unreadable one says so
    titled = contact_sheet([red], title="a street with no car", tile=100)
    assert titled.height > contact_sheet([red], tile=100).height
    assert titled.getpixel((titled.width - 1, titled.height - 1)) == WHITE


def test_contact_sheet_text_stays_inside_its_tile() -> None:
    plain = contact_sheet([halves(), halves()], ["", ""], tile=80)
    sheet = contact_sheet([halves(), halves()], ["x" * 500, ""], tile=80)
    ink = np.argwhere(np.asarray(sheet)[: plain.height].min(axis=2) < 100)
    assert ink[:, 1].max() < 8 + 80 + 80 + 8
    below = np.asarray(sheet)[90:, 90:].min(axis=2)
    assert below.min() > 150


def test_contact_sheet_refuses_nonsense() -> None:
    with pytest.raises(ValueError, match="at least one image"):
        contact_sheet([])
    with pytest.raises(ValueError, match="1 images but 2 captions"):
        contact_sheet([halves()], ["a", "b"])
    with pytest.raises(ValueError, match="at least 1"):
        contact_sheet([halves()], columns=0)
