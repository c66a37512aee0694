"""CIFAR in both layouts: small made-up files of the official form, and the real ones."""

from __future__ import annotations

import dataclasses
import os
import pickle
import re
import subprocess
import sys

import numpy as np
import pytest
import torch

from lpsgd.lab.data import load
from lpsgd.lab.data.catalogue import entry
from lpsgd.lab.data.sets import cifar, pickles
from lpsgd.lab.data.source.download import md5
from lpsgd.lab.errors import UserError
from tests.lab.data.conftest import require

IMAGES = 12


def make(name, kind, folder, *, protocol=2, images=IMAGES):
    """Write files of the official layout with few images; return the layout and the content."""
    published = next(layout for layout in entry(name).layouts if layout.kind == kind)
    random = np.random.default_rng(0)
    classes = cifar.CLASSES[name]
    files, content = [], {"train": [], "test": []}
    for file in published.files:
        pixels = random.integers(0, 256, (images, 3072), dtype=np.uint8)
        labels = random.integers(0, classes, images)
        coarse = random.integers(0, 20, images)
        if kind == "binary":
            columns = [coarse, labels] if classes == 100 else [labels]
            written = np.column_stack([*columns, pixels]).astype(np.uint8).tobytes()
        else:
            key = "fine_labels" if classes == 100 else "labels"
            batch = {"data": pixels, key: labels.tolist(), "coarse_labels": coarse.tolist()}
            # the official files are Python 2's, whose strings read as bytes
            batch = {key.encode(): value for key, value in batch.items()}
            written = pickle.dumps(batch, protocol=protocol)
        path = folder / published.folder / file.name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(written)
        files.append(dataclasses.replace(file, images=images, md5=md5(written)))
        content[file.split].append((pixels, labels))
    merged = {
        split: tuple(np.concatenate(parts) for parts in zip(*pairs, strict=True))
        for split, pairs in content.items()
    }
    return dataclasses.replace(published, files=tuple(files)), merged


def read(name, layout, folder, split="train", **settings):
    classes = cifar.CLASSES[name]
    return cifar.read_split(layout, split, folder / layout.folder, classes=classes, **settings)


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
@pytest.mark.parametrize("kind", ["binary", "python"])
@pytest.mark.parametrize("split", ["train", "test"])
def test_pixels_and_labels(name, kind, split, tmp_path):
    layout, content = make(name, kind, tmp_path)
    pixels, labels = content[split]
    found = read(name, layout, tmp_path, split)
    assert found.labels.tolist() == labels.tolist()
    # in the file all red values come first, then green, then blue
    assert found.images.shape == (len(labels), 32, 32, 3)
    for image, row in zip(found.images.numpy(), pixels, strict=True):
        assert image[2, 5].tolist() == [row[69], row[1024 + 69], row[2048 + 69]]
        assert image.transpose(2, 0, 1).tobytes() == row.tobytes()


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_every_pickle_protocol(protocol, tmp_path):
    layout, content = make("cifar10", "python", tmp_path, protocol=protocol)
    assert read("cifar10", layout, tmp_path).labels.tolist() == content["train"][1].tolist()


def damage(layout, folder, change, file=0):
    path = folder / layout.folder / layout.files[file].name
    path.write_bytes(change(path.read_bytes()))
    return path


DAMAGE = [
    lambda data: data[:-1],
    lambda data: data[: len(data) // 2],
    lambda data: b"",
    lambda data: data + b"x",
    lambda data: b"\x0a" + data[1:],
    lambda data: data[:9] + bytes([data[9] ^ 1]) + data[10:],
]


@pytest.mark.parametrize("kind", ["binary", "python"])
@pytest.mark.parametrize("change", DAMAGE)
def test_damaged_files_are_named_by_their_checksum(change, kind, tmp_path):
    layout, _ = make("cifar10", kind, tmp_path)
    path = damage(layout, tmp_path, change, file=2)
    message = f"{path} is not the published file: its md5 is {md5(path.read_bytes())}"
    with pytest.raises(UserError, match=re.escape(message)):
        read("cifar10", layout, tmp_path)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (DAMAGE[0], "cannot reshape array of size 36875"),
        (DAMAGE[2], "cannot reshape array of size 0"),
        (DAMAGE[3], "cannot reshape array of size 36877"),
        (lambda data: data[:3073], "cannot reshape array of size 3072"),
        (DAMAGE[4], "labels from 0 to 10"),
    ],
)
def test_binary_files_that_were_changed_on_purpose_still_need_their_form(change, reason, tmp_path):
    layout, _ = make("cifar10", "binary", tmp_path)
    path = damage(layout, tmp_path, change, file=2)
    message = rf"{re.escape(str(path))} does not hold 12 images of 10 classes: .*{reason}"
    with pytest.raises(UserError, match=message):
        read("cifar10", layout, tmp_path, check=False)


def test_a_changed_pixel_can_be_accepted_on_purpose(tmp_path):
    layout, _ = make("cifar10", "binary", tmp_path)
    damage(layout, tmp_path, lambda data: data[:9] + bytes([data[9] ^ 1]) + data[10:])
    assert len(read("cifar10", layout, tmp_path, check=False).labels) == 5 * IMAGES


def batch(**changes):
    whole = {"data": np.zeros((IMAGES, 3072), np.uint8), "labels": [0] * IMAGES} | changes
    return lambda _: pickle.dumps({k: v for k, v in whole.items() if v is not None}, protocol=2)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda data: data[:-200], ""),
        (lambda data: b"", "EOFError"),
        (lambda data: b"\x80\x02" + bytes(range(100)), ""),
        (lambda data: pickle.dumps([1, 2]), "items"),
        (batch(labels=None), "KeyError.*labels"),
        (batch(labels=[0] * 11), "cannot reshape array of size 11"),
        (batch(labels=["cat"] * 12), "Cannot cast array data"),
        (batch(labels=7), "cannot reshape array of size 1"),
        (batch(labels=[0] * 11 + [10]), "labels from 0 to 10"),
        (batch(labels=[0] * 11 + [-1]), "labels from -1 to 0"),
        (batch(labels=[0] * 11 + [2**70]), "Cannot cast array data"),
        (batch(data=np.zeros((11, 3072), np.uint8)), "cannot reshape array of size 33792"),
        (batch(data=np.zeros((12, 3072))), "Cannot cast array data"),
        (batch(data=[1, 2, 3]), "Cannot cast array data"),
    ],
)
def test_python_files_that_were_changed_on_purpose_still_need_their_form(change, reason, tmp_path):
    layout, _ = make("cifar10", "python", tmp_path)
    path = damage(layout, tmp_path, change, file=1)
    message = rf"{re.escape(str(path))} does not hold 12 images of 10 classes: .*{reason}"
    with pytest.raises(UserError, match=message):
        read("cifar10", layout, tmp_path, check=False)


class Hostile:
    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_hostile_pickle_runs_nothing(protocol, tmp_path):
    layout, _ = make("cifar10", "python", tmp_path)
    witness = tmp_path / "witness"
    hostile = {b"data": Hostile(os.system, f"touch {witness}"), b"labels": []}
    path = damage(layout, tmp_path, lambda _: pickle.dumps(hostile, protocol=protocol))
    with pytest.raises(
        UserError, match=f"{path} is refused, it may be hostile: it asks for .*system"
    ):
        read("cifar10", layout, tmp_path, check=False)
    assert not witness.exists()


@pytest.mark.parametrize(
    "hostile",
    [
        Hostile(eval, "1"),
        Hostile(getattr, 1, "real"),
        Hostile(np.load, "x.npy"),
        Hostile(np.frombuffer, b"1234"),
        Hostile(pickle.loads, b"N."),
        np.float64,
        np.testing.assert_equal,
    ],
    ids=lambda hostile: getattr(hostile, "call", (hostile,))[0].__name__,
)
def test_nothing_but_arrays_is_resolved(hostile):
    with pytest.raises(pickles.ForbiddenPickle, match="only numpy arrays and plain values"):
        pickles.loads(pickle.dumps(hostile))


_OBJECTS = b"cnumpy\ndtype\n(X\x01\x00\x00\x00O\x89\x88tR"
_NEW = b"cnumpy._core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85C\x01b\x87R"
_NO_FLAGS = b"(K\x03X\x01\x00\x00\x00|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
_MEMORY = b"\x96\x08\x00\x00\x00\x00\x00\x00\x00AAAAAAAA"
_WRITE = b"K\x00Ns."  # array[0] = None: numpy lets go of the object whose address was there
_RAW_MEMORY = {
    "ndarray((1,), object, bytearray)": [b"cnumpy\nndarray\n(K\x01\x85", _OBJECTS, _MEMORY, b"tR"],
    "a dtype whose state denies that it is of objects": [
        *(_NEW, b"(K\x01K\x01\x85", _OBJECTS, _NO_FLAGS, b"\x89C\x08AAAAAAAAtb"),
    ],
}


@pytest.mark.parametrize("name", _RAW_MEMORY)
def test_raw_memory_is_not_taken_for_objects(name):
    hostile = b"".join([b"\x80\x05", *_RAW_MEMORY[name], _WRITE])
    # in a process of its own: it would die
    program = (
        "import sys; from lpsgd.lab.data.sets.pickles import loads; loads(sys.stdin.buffer.read())"
    )
    done = subprocess.run([sys.executable, "-c", program], input=hostile, capture_output=True)
    assert done.returncode == 1, f"{done.returncode}: {done.stderr}"
    assert b"ForbiddenPickle" in done.stderr


@pytest.mark.parametrize(
    "array",
    [
        np.array([{}]),
        np.array(["a"]),
        np.zeros(2, "V8"),
        np.zeros(2, [("a", "O")]),
        np.zeros(2, "M8"),
    ],
    ids=lambda array: str(array.dtype),
)
def test_arrays_of_other_things_than_numbers_are_refused(array):
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        with pytest.raises(pickles.ForbiddenPickle, match="numbers"):
            pickles.loads(pickle.dumps(array, protocol=protocol))


def test_an_array_that_python_2_wrote():
    """The official files are of this kind: every string is bytes."""
    content = b"".join(
        [
            b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I0\ntS'b'\ntR(I1\n(I2\nI3\nt",
            b"cnumpy\ndtype\n(S'u1'\nI0\nI1\ntR(I3\nS'|'\nNNNI-1\nI-1\nI0\ntbI00\nS'abcdef'\ntb.",
        ]
    )
    found = pickles.loads(content)
    assert (found.dtype, found.tolist()) == (np.uint8, [[97, 98, 99], [100, 101, 102]])


def test_only_the_harmless_codec_is_allowed():
    assert pickles.loads(pickle.dumps(b"\xff\x00", protocol=2)) == b"\xff\x00"
    hostile = b"\x80\x02c_codecs\nencode\nX\x01\x00\x00\x00aX\x03\x00\x00\x00zip\x86R."
    with pytest.raises(pickles.ForbiddenPickle, match="encoding 'zip'"):
        pickles.loads(hostile)


def test_arrays_and_plain_values_survive():
    value = {"a": np.arange(6, dtype=">i4").reshape(3, 2).T, "b": [1, 2.5, None, True, ("x", b"y")]}
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        found = pickles.loads(pickle.dumps(value, protocol=protocol))
        np.testing.assert_array_equal(found["a"], value["a"])
        assert found["b"] == value["b"]


def test_missing_files_are_named_with_the_command_that_gets_them(tmp_path):
    make("cifar10", "binary", tmp_path)
    (tmp_path / "cifar-10-batches-bin" / "test_batch.bin").unlink()
    with pytest.raises(UserError) as caught:
        load("cifar10", tmp_path)
    message = str(caught.value)
    assert f"{tmp_path / 'cifar-10-batches-bin'} lacks test_batch.bin" in message
    assert f"{tmp_path / 'cifar-10-batches-py'} lacks data_batch_1, " in message
    assert message.endswith("Get it with: lpsgd data get cifar10")


def test_a_complete_layout_is_preferred_to_an_incomplete_one(tmp_path):
    make("cifar10", "binary", tmp_path)
    (tmp_path / "cifar-10-batches-bin" / "test_batch.bin").unlink()
    make("cifar10", "python", tmp_path)
    assert cifar.find_layout(entry("cifar10"), tmp_path).kind == "python"


def test_a_short_file_under_the_official_name_is_refused_by_load(tmp_path):
    make("cifar10", "binary", tmp_path)
    with pytest.raises(UserError, match=r"data_batch_1.bin is not the published file"):
        load("cifar10", tmp_path)


def test_real_cifar10(cifar10_root):
    data = load("cifar10", cifar10_root, val_size=5000, augment=False, batch_size=500)
    assert (data.train.size, data.val.size, data.test.size) == (45_000, 5000, 10_000)
    assert (data.input_shape, data.classes) == ((3, 32, 32), 10)
    labels = torch.cat([y for _, y in data.test.epoch(0)])
    assert torch.bincount(labels).tolist() == [1000] * 10
    assert labels[:10].tolist() == [3, 8, 8, 0, 6, 6, 1, 6, 3, 1]
    # the second test image is a ship under a white sky
    first, _ = next(data.test.epoch(0))
    assert first[1, :, 0, 0].tolist() == pytest.approx(
        [
            (235 / 255 - m) / s
            for m, s in zip(*vars(cifar.NORMALIZATION["cifar10"]).values(), strict=True)
        ],
        abs=1e-5,
    )


def test_normalization_is_that_of_the_real_training_images(cifar10_root):
    layout = entry("cifar10").layouts[0]
    images = cifar.read_split(
        layout, "train", cifar10_root / layout.folder, classes=10, check=False
    ).images
    normalization = cifar.NORMALIZATION["cifar10"]
    for channel in range(3):
        counts = torch.bincount(images[..., channel].flatten(), minlength=256).double()
        values = torch.arange(256) / 255
        mean = float((counts * values).sum() / counts.sum())
        std = float((counts * (values - mean) ** 2).sum() / counts.sum()) ** 0.5
        assert normalization.mean[channel] == pytest.approx(mean, abs=6e-5)
        assert normalization.std[channel] == pytest.approx(std, abs=6e-5)


def test_real_cifar100_test_set():
    layout = entry("cifar100").layouts[0]
    folder = require(layout, "test") / layout.folder
    test = cifar.read_split(layout, "test", folder, classes=100)
    assert torch.bincount(test.labels).tolist() == [100] * 100


def test_a_smaller_size_averages_squares():
    from PIL import Image

    random = np.random.default_rng(0)
    pixels = random.integers(0, 256, (3, 32, 32, 3), dtype=np.uint8)
    images = cifar.ImageSet(torch.from_numpy(pixels), torch.arange(3))
    for size in (16, 8, 1):
        found = cifar.shrink(images, size).images.numpy().astype(int)
        for image, original in zip(found, pixels, strict=True):
            box = Image.fromarray(original).reduce(32 // size)  # Pillow rounds halves up
            assert np.abs(image - np.asarray(box).astype(int)).max() <= 1
    assert cifar.shrink(images, 32) is images


def test_a_size_that_does_not_divide_the_side_is_refused(tmp_path):
    for size in (5, 0, 64, "x"):
        with pytest.raises(UserError, match=f"size is .?{size}"):
            load("cifar10", root=tmp_path, size=size)


def test_real_cifar10_at_half_its_size(cifar10_root):
    data = load("cifar10", root=cifar10_root, size=16, batch_size=100, augment=False)
    whole = load("cifar10", root=cifar10_root, batch_size=100, augment=False)
    assert data.input_shape == (3, 16, 16)
    (images, labels), (large, same) = next(data.test.plain()), next(whole.test.plain())
    assert torch.equal(labels, same)
    halved = torch.nn.functional.avg_pool2d(large, 2)
    assert (images - halved).abs().max() < 0.5 / 255 / 0.24  # half a step of a byte


def test_some_classes_are_numbered_anew():
    images = cifar.ImageSet(torch.arange(7).view(7, 1, 1, 1), torch.tensor([0, 3, 5, 3, 1, 0, 5]))
    found = cifar.of_classes(images, [5, 3])
    assert found.images.flatten().tolist() == [1, 2, 3, 6]
    assert found.labels.tolist() == [1, 0, 1, 0]


def test_real_cifar10_with_half_of_its_classes(cifar10_root):
    data = load("cifar10", root=cifar10_root, classes=[5, 6, 7, 8, 9], train_size=500)
    assert data.classes == 5
    labels = torch.cat([labels for _, labels in data.train.plain()])
    assert torch.bincount(labels).tolist() == [100] * 5
    assert data.test.size == 5000


@pytest.mark.parametrize("classes", [[], [0, 0], [10], ["a"], "cats", [-1]])
def test_wrong_classes_are_named(classes, cifar10_root):
    with pytest.raises(UserError, match="classes is .*; allowed: a list of different numbers"):
        load("cifar10", root=cifar10_root, classes=classes)


def test_the_test_file_alone_serves_for_both(tmp_path, monkeypatch):
    layout, content = make("cifar100", "binary", tmp_path, images=500)
    (tmp_path / layout.folder / "train.bin").unlink()
    described = dataclasses.replace(entry("cifar100"), layouts=(layout,))
    monkeypatch.setattr(cifar, "entry", lambda name: described)
    data = load("cifar100", root=tmp_path, files="test", batch_size=10, augment=False)
    labels = content["test"][1]
    tested = [k for c in range(100) for k in np.flatnonzero(labels == c)[4::5]]
    assert data.test.size == len(tested)
    assert data.train.size == len(labels) - len(tested)
    found = torch.cat([batch for _, batch in data.test.plain()])
    assert found.tolist() == labels[sorted(tested)].tolist()
    with pytest.raises(UserError, match=r"cifar100 was not found: .* lacks train.bin"):
        load("cifar100", root=tmp_path)
    with pytest.raises(UserError, match="files is 'some'; allowed: all, test"):
        load("cifar100", root=tmp_path, files="some")
