"""The data sets that need no files: digits, text, synthetic."""

from __future__ import annotations

import doctest

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

import lpsgd.lab.data
from lpsgd.lab.data import load
from lpsgd.lab.data.sets.digits import NORMALIZATION, train_and_test
from lpsgd.lab.data.sets.text import manual
from lpsgd.lab.data.source.download import md5
from lpsgd.lab.errors import UserError


def test_the_example_in_the_documentation():
    assert doctest.testmod(lpsgd.lab.data).failed == 0


class TestDigits:
    def test_split_is_the_same_everywhere(self):
        train, test = train_and_test()
        assert (len(train.labels), len(test.labels)) == (1442, 355)
        assert torch.bincount(test.labels).tolist() == [35, 36, 35, 36, 36, 36, 36, 35, 34, 36]
        assert md5(train.images.numpy().tobytes()) == "2a94e3c553627b060779d02e0618c0b1"
        assert md5(test.images.numpy().tobytes()) == "95518437cdc2bc5315201626c96142f7"

    def test_every_image_is_used_once_and_resized_bilinearly(self):
        bunch = load_digits()
        grid = np.clip((np.arange(32) + 0.5) / 4 - 0.5, 0, 7)
        low = np.minimum(grid.astype(int), 6)
        weights = np.zeros((32, 8))
        weights[np.arange(32), low] = 1 - (grid - low)
        weights[np.arange(32), low + 1] += grid - low
        large = np.einsum("yi,xj,nij->nyx", weights, weights, bunch.images)
        expected = np.round(large * 255 / 16).astype(np.uint8).reshape(1797, -1)
        train, test = train_and_test()
        found = torch.cat([train.images, test.images]).flatten(1).numpy()
        labels = torch.cat([train.labels, test.labels]).numpy()
        order_of_found, order_of_expected = np.lexsort(found.T), np.lexsort(expected.T)
        np.testing.assert_array_equal(found[order_of_found], expected[order_of_expected])
        np.testing.assert_array_equal(labels[order_of_found], bunch.target[order_of_expected])

    def test_normalization_is_that_of_the_training_images(self):
        pixels = train_and_test()[0].images.double() / 255
        assert NORMALIZATION.mean == pytest.approx((float(pixels.mean()),), abs=5e-5)
        assert NORMALIZATION.std == pytest.approx((float(pixels.std()),), abs=5e-5)

    def test_digits_are_never_mirrored(self):
        data = load("digits", train_size=200, batch_size=200)
        plain = torch.cat([x for x, _ in data.train.plain()])
        background = float(plain.min())
        padded = torch.nn.functional.pad(plain, (4, 4, 4, 4), value=background)
        shifts = padded.unfold(2, 32, 1).unfold(3, 32, 1).reshape(-1, 1024)
        known = {shift.numpy().tobytes() for shift in shifts}
        augmented = next(data.train.epoch(0))[0]
        assert all(image.numpy().tobytes() in known for image in augmented.reshape(-1, 1024))


class TestText:
    def test_targets_are_the_next_characters(self):
        data = load("text", batch_size=8, context=16)
        assert (data.task, data.input_shape) == ("text", (16,))
        for windows, targets in [next(data.train.epoch(0)), next(data.test.epoch(0))]:
            assert windows.shape == (8, 16)
            assert targets.shape == (8 * 16,)
            assert torch.equal(windows[:, 1:], targets.view(8, 16)[:, :-1])

    def test_windows_are_pieces_of_the_text_and_splits_do_not_overlap(self, tmp_path):
        # every character occurs once, so a window says where it stands
        text = "".join(map(chr, range(0x4E00, 0x4E00 + 2000)))
        path = tmp_path / "text.txt"
        path.write_text(text, encoding="utf-8")
        data = load("text", path=path, context=10, batch_size=4, val_size=20, train_size=60)
        assert data.classes == 2000

        def places(batches):
            seen = set()
            for windows, targets in batches:
                for window, target in zip(windows, targets.view(-1, 10), strict=True):
                    start = int(window[0])
                    assert window.tolist() == list(range(start, start + 10))
                    assert target.tolist() == list(range(start + 1, start + 11))
                    seen |= set(range(start, start + 11))
            return seen

        train = set().union(*(places(data.train.epoch(e)) for e in range(20)))
        val, test = places(data.val.epoch(0)), places(data.test.epoch(0))
        assert max(train) < min(val) <= max(val) < 1800 <= min(test)
        assert len(train) <= 61 * 10

    def test_windows_start_at_another_offset_in_each_epoch(self, tmp_path):
        path = tmp_path / "text.txt"
        path.write_text("".join(map(chr, range(0x4E00, 0x4E00 + 2000))), encoding="utf-8")
        data = load("text", path=path, context=10, batch_size=4)
        offsets = {int(next(data.train.epoch(epoch))[0][0, 0]) % 10 for epoch in range(50)}
        assert len(offsets) > 5
        fixed = load("text", path=path, context=10, batch_size=4, augment=False)
        assert {int(next(fixed.train.epoch(epoch))[0][0, 0]) % 10 for epoch in range(9)} == {0}

    def test_the_default_is_a_sizeable_text_of_python_itself(self):
        text = manual()
        assert len(text) > 300_000
        assert "Assert statements are a convenient way to insert debugging" in text

    def test_errors_name_the_file(self, tmp_path):
        with pytest.raises(UserError, match=r"cannot read the text .*absent.txt: No such file"):
            load("text", path=tmp_path / "absent.txt")
        latin = tmp_path / "latin.txt"
        latin.write_bytes(b"caf\xe9 " * 100)
        with pytest.raises(UserError, match=r"latin.txt is not UTF-8 text: byte 3"):
            load("text", path=latin)
        short = tmp_path / "short.txt"
        short.write_text("short")
        with pytest.raises(UserError, match="the text is too short"):
            load("text", path=short)
        with pytest.raises(UserError, match="train_size is 1000000; allowed: 1 to"):
            load("text", train_size=1_000_000)
        with pytest.raises(UserError, match="val_size is 1000000; allowed: 1 to"):
            load("text", val_size=1_000_000)
        for context in (0, "none", 2.5):
            with pytest.raises(
                UserError, match=r"context is .*; allowed: a whole number, 1 or more"
            ):
                load("text", context=context)
        assert load("text", context="64").input_shape == (64,)
        with pytest.raises(UserError, match=r"train_size is 8, but .* no window of 9999999"):
            load("text", context=9_999_999, train_size=8)


class TestSynthetic:
    @pytest.mark.parametrize("shape", [(3, 32, 32), (1, 5, 9), "2x8x6"])
    def test_any_shape(self, shape):
        data = load(
            "synthetic", shape=shape, classes=7, train_size=100, test_size=40, batch_size=20
        )
        expected = (2, 8, 6) if shape == "2x8x6" else shape
        assert data.input_shape == expected
        assert data.classes == 7
        assert (data.train.size, data.test.size) == (100, 40)
        images, labels = next(data.train.epoch(0))
        assert images.shape == (20, *expected)
        assert int(labels.max()) < 7

    def test_classes_can_be_told_apart(self):
        data = load("synthetic", batch_size=1024, augment=False)
        images, labels = next(data.train.epoch(0))
        means = torch.stack([images[labels == k].mean(0) for k in range(10)]).flatten(1)
        tests, truth = next(data.test.epoch(0))
        nearest = torch.cdist(tests.flatten(1), means).argmin(1)
        assert (nearest == truth).all()

    @pytest.mark.parametrize("shape", [(3, 32), "3x0x4", "large", (3, 32, 32, 1)])
    def test_wrong_shapes(self, shape):
        with pytest.raises(UserError, match="allowed: channels, height, width"):
            load("synthetic", shape=shape)

    def test_one_class_is_too_few(self):
        with pytest.raises(UserError, match="classes is 1; allowed: a whole number, 2 or more"):
            load("synthetic", classes=1)


def test_text_as_sub_words_of_the_training_part(tmp_path):
    from lpsgd.lab.data.subwords import SubWords

    text = ("one two three four five\n" * 200) + "unseen: xyzzy " * 40
    path = tmp_path / "text.txt"
    path.write_text(text, encoding="utf-8")
    data = load("text", path=path, vocabulary=300, context=16, batch_size=4, augment=False)
    border = len(text) - len(text) // 10
    words = SubWords(text[:border], 300)
    assert data.classes == len(words)
    inputs, _ = next(data.test.plain())
    assert inputs.flatten().tolist() == words.encode(text[border:])[: inputs.numel()]


def test_a_vocabulary_smaller_than_the_bytes_is_refused():
    with pytest.raises(UserError, match="vocabulary is 255; allowed: a whole number, 256 or more"):
        load("text", vocabulary=255)
