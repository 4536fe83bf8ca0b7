"""Tensors of PyTorch's files without PyTorch: equal to PyTorch's, and no code is run."""

import collections
import os
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest

from models.interop import import_hf, torch_pickle
from models.interop.published_folder import WeightsError
from tests.kits import hf_folders
from tests.kits.interop import needs_interop

ARRAYS = {
    "weight": np.random.default_rng(0).normal(size=(3, 5)).astype(np.float32),
    "bias": np.arange(3, dtype=np.float32),
    "one": np.float32(7).reshape(()),
    "none": np.zeros((0, 4), np.float32),
}


def test_what_is_written_is_read(tmp_path: Path) -> None:
    torch_pickle.write(tmp_path / "head.pt", ARRAYS)
    found = torch_pickle.read(tmp_path / "head.pt")
    assert list(found) == list(ARRAYS)
    for name, array in ARRAYS.items():
        assert found[name].dtype == np.float32
        np.testing.assert_array_equal(found[name], array)


@needs_interop
def test_pytorch_reads_what_is_written(tmp_path: Path) -> None:
    import torch

    torch_pickle.write(tmp_path / "head.pt", ARRAYS)
    found = torch.load(tmp_path / "head.pt", weights_only=True)
    assert isinstance(found, collections.OrderedDict) and list(found) == list(ARRAYS)
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(found[name].numpy(), array)


@needs_interop
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_what_pytorch_writes_is_read(dtype: str, tmp_path: Path) -> None:
    import torch

    head = torch.nn.Linear(6, 4).to(getattr(torch, dtype))
    torch.save(head.state_dict(), tmp_path / "head.pt")
    parts = {"transposed": head.weight.detach().T, "part": head.weight.detach()[1:3, 2:]}
    torch.save(parts, tmp_path / "parts.pt")
    for file, expected in (("head.pt", head.state_dict()), ("parts.pt", parts)):
        found = torch_pickle.read(tmp_path / file)
        assert list(found) == list(expected)
        for name, tensor in expected.items():
            np.testing.assert_array_equal(found[name], tensor.float().numpy())


class Runs:
    """A pickle of it runs a command where it is read."""

    def __init__(self, mark: Path):
        self.mark = mark

    def __reduce__(self):
        return os.system, (f"touch {self.mark}",)


def archive(path: Path, pickled: bytes, **more: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as made:
        made.writestr("archive/data.pkl", pickled)
        for name, content in more.items():
            made.writestr(f"archive/data/{name}", content)
    return path


def test_a_pickle_with_code_in_it_is_refused(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    file = archive(tmp_path / "head.pt", pickle.dumps({"weight": Runs(mark)}))
    with pytest.raises(WeightsError, match=r"names (posix|nt)\.system, which would be run"):
        torch_pickle.read(file)
    assert not mark.exists()
    pickle.loads(pickle.dumps(Runs(mark)))  # as it would
    assert mark.exists()


@pytest.mark.parametrize(
    "named",
    [
        ("builtins", "eval"),
        ("torch", "load"),
        ("collections", "namedtuple"),
        ("numpy", "load"),
        ("torch.storage", "_load_from_bytes"),
    ],
)
def test_other_names_are_refused(named: tuple[str, str], tmp_path: Path) -> None:
    pickled = b"\x80\x02c" + "\n".join(named).encode() + b"\n."
    with pytest.raises(WeightsError, match=rf"names {named[0]}\.{named[1]}, which would be run"):
        torch_pickle.read(archive(tmp_path / "head.pt", pickled))


@pytest.mark.parametrize("lacking", ["", "sparse_linear", "colbert_linear"])
def test_the_heads_of_a_published_folder_are_read_when_asked(lacking: str, tmp_path: Path) -> None:
    folder = hf_folders.write(tmp_path, hf_folders.official("roberta"), "roberta")
    random = np.random.default_rng(1)
    heads = {
        "sparse_linear": {"weight": random.normal(size=(1, 16)), "bias": random.normal(size=1)},
        "colbert_linear": {"weight": random.normal(size=(8, 16)), "bias": random.normal(size=8)},
    }
    for name, tensors in heads.items():
        if name != lacking:
            torch_pickle.write(folder / f"{name}.pt", tensors)
    plain = import_hf.HuggingFace(str(folder), 50).arrays()
    found = import_hf.HuggingFace(str(folder), 50, m3_heads=True).arrays()
    more = found.keys() - plain.keys()
    ours = {"sparse_linear": "sparse/dense", "colbert_linear": "multi_vector/dense"}
    paths = {path for name, path in ours.items() if name != lacking}
    assert more == {f"{path}/{part}" for path in paths for part in ("kernel", "bias")}
    for name, path in ours.items():
        if name != lacking:
            expected = heads[name]["weight"].T.astype(np.float32)
            np.testing.assert_array_equal(found[f"{path}/kernel"], expected)


def test_a_head_of_another_width_is_refused(tmp_path: Path) -> None:
    folder = hf_folders.write(tmp_path, hf_folders.official("roberta"), "roberta")
    torch_pickle.write(
        folder / "sparse_linear.pt", {"weight": np.zeros((1, 12)), "bias": np.zeros(1)}
    )
    with pytest.raises(WeightsError, match=r"weight: expected \(1, 16\), found \(1, 12\)"):
        import_hf.HuggingFace(str(folder), 50, m3_heads=True).arrays()


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    whole = tmp_path / "head.pt"
    torch_pickle.write(whole, ARRAYS)
    content = whole.read_bytes()
    (tmp_path / "cut.pt").write_bytes(content[: len(content) // 2])
    (tmp_path / "pointer.pt").write_text("version https://git-lfs.github.com/spec/v1\n")
    (tmp_path / "bare.pt").write_bytes(pickle.dumps({"weight": 1}))
    archive(tmp_path / "list.pt", pickle.dumps([1, 2]))
    archive(tmp_path / "numbers.pt", pickle.dumps({"weight": 1}))
    archive(tmp_path / "broken.pt", b"\x80\x02}q")
    with zipfile.ZipFile(tmp_path / "empty.pt", "w"):
        pass
    names = ("cut", "pointer", "bare", "list", "numbers", "broken", "empty")
    for name in names:
        with pytest.raises(WeightsError, match=rf"{name}\.pt: expected a dict of tensors"):
            torch_pickle.read(tmp_path / f"{name}.pt")
    with pytest.raises(FileNotFoundError):
        torch_pickle.read(tmp_path / "absent.pt")


def test_a_tensor_that_reaches_beyond_its_bytes_is_refused(tmp_path: Path) -> None:
    torch_pickle.write(tmp_path / "head.pt", {"weight": np.zeros((2, 3), np.float32)})
    with zipfile.ZipFile(tmp_path / "head.pt") as made:
        pickled = made.read("archive/data.pkl")
    size = b"".join(b"J" + n.to_bytes(4, "little") for n in (2, 3))
    assert size in pickled
    larger = pickled.replace(size, b"".join(b"J" + n.to_bytes(4, "little") for n in (200, 300)))
    file = archive(tmp_path / "larger.pt", larger, **{"0": bytes(24)})
    with pytest.raises(WeightsError, match="in 6 numbers"):
        torch_pickle.read(file)
    file = archive(tmp_path / "shorter.pt", pickled, **{"0": bytes(20)})
    with pytest.raises(WeightsError, match="expected 6 numbers, found 20 bytes"):
        torch_pickle.read(file)
