"""A text as a stream of characters or sub-words: the model predicts each from those before it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lpsgd.lab.data.loaders import Batch, Data, DataRequest, Loader, Rows, chosen, read_count
from lpsgd.lab.data.seeding import derive
from lpsgd.lab.data.subwords import BYTES, SubWords
from lpsgd.lab.errors import UserError

TEST_SHARE = 10  # the last tenth of the text is the test set


def load(
    request: DataRequest,
    *,
    path: str | Path | None = None,
    context: int = 128,
    vocabulary: int | None = None,
) -> Data:
    """Cut a text into a training part (its first nine tenths) and a test part (the rest).

    An example is a window of ``context`` characters, or sub-words of a vocabulary of that size that
    is learned from the training part; the sizes count windows. The validation split
    is the end of the training part, a training subset is a run of windows at a place drawn from
    the seed: neighbouring windows share sentences, so random windows would leak.
    """
    context = read_count("context", context, least=1)
    text = manual() if path is None else read_file(Path(str(path)))
    train, test, classes = _characters(text) if vocabulary is None else _sub_words(text, vocabulary)
    train, val = _hold_out(train, request, context)
    test_windows = _windows(test, context)
    if request.test_size is not None:
        _check("test_size", request.test_size, test_windows, context)
        test = test[: (request.test_size + 1) * context]
    return Data(
        name=request.name,
        task="text",
        input_shape=(context,),
        classes=classes,
        train=TextLoader(train, context, request, train=True),
        val=TextLoader(val, context, request, train=False) if request.val_size else None,
        test=TextLoader(test, context, request, train=False),
    )


def _characters(text: str) -> tuple[Tensor, Tensor, int]:
    """The numbers of the training and the test part, and how many characters there are."""
    characters = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    alphabet, numbers = np.unique(characters, return_inverse=True)
    stream = torch.from_numpy(numbers)
    border = len(stream) - len(stream) // TEST_SHARE
    return stream[:border], stream[border:], len(alphabet)


def _sub_words(text: str, vocabulary: int) -> tuple[Tensor, Tensor, int]:
    """The same as sub-words, which are learned from the training part alone."""
    size = read_count("vocabulary", vocabulary, least=BYTES)
    border = len(text) - len(text) // TEST_SHARE
    words = SubWords(text[:border], size)
    train, test = (torch.tensor(words.encode(part)) for part in (text[:border], text[border:]))
    return train, test, len(words)


def manual() -> str:
    """The text that every Python carries: its reference manual, as ``help("topics")`` shows it.

    About half a megabyte of English with code; it differs a little from one Python to the next.
    """
    from pydoc_data.topics import topics

    return "\n".join(topics[name] for name in sorted(topics))


def read_file(path: Path) -> str:
    """A UTF-8 text file."""
    try:
        return path.expanduser().read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot read the text {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path} is not UTF-8 text: byte {error.start} cannot be decoded"
        ) from error


class TextLoader(Loader):
    """Windows of (context,) characters and, flattened, the characters that follow each of them.

    With augmentation the windows of an epoch start at a common offset, drawn anew for each epoch,
    so that the model sees every position of the text.
    """

    def __init__(self, stream: Tensor, context: int, request: DataRequest, *, train: bool) -> None:
        size = _windows(stream, context)
        if size < 1:
            raise UserError(
                f"the text is too short: {len(stream)} characters in its"
                f" {'training' if train else 'test'} part, two windows of {context} are needed"
            )
        super().__init__(size, request, train=train)
        self._stream = stream.to(request.device)
        self._context = context

    def _draw(
        self, batches: Sequence[Tensor], epoch: int, start: int, *, augment: bool, rows: Rows | None
    ) -> Iterator[Batch]:
        offset = derive(self.seed, "offset", epoch) % self._context if augment else 0
        reach = torch.arange(self._context + 1)
        for index in batches:
            positions = (offset + chosen(index, rows) * self._context)[:, None] + reach
            windows = self._stream[positions.to(self._stream.device)]
            yield windows[:, :-1].contiguous(), windows[:, 1:].flatten()


def _windows(stream: Tensor, context: int) -> int:
    # one window less than fit, so that every offset leaves room for the character after the last
    return len(stream) // context - 1


def _hold_out(train: Tensor, request: DataRequest, context: int) -> tuple[Tensor, Tensor]:
    """Cut the validation windows off the end; then keep a run of ``train_size`` windows."""
    total = _windows(train, context)
    val = train[:0]
    if request.val_size:
        _check("val_size", request.val_size, total - 2, context)
        border = len(train) - (request.val_size + 1) * context
        train, val = train[:border], train[border:]
    if request.train_size is not None:
        left = _windows(train, context)
        _check("train_size", request.train_size, left, context)
        first = derive(request.seed, "subset") % (left - request.train_size + 1) * context
        train = train[first : first + (request.train_size + 1) * context]
    return train, val


def _check(name: str, value: int, most: int, context: int) -> None:
    if most < 1:
        raise UserError(f"{name} is {value}, but this text has no window of {context} to spare")
    if not 1 <= value <= most:
        raise UserError(f"{name} is {value}; allowed: 1 to {most} windows of this text")
