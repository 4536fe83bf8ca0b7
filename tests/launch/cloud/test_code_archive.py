"""The archive of the code: what is in it, that it is reproducible, what is refused."""

import os
import subprocess
import tarfile

import pytest

from launch.cloud import code_archive
from launch.cloud.code_archive import CodeError, build

FILES = {
    "launch/cloud/code_archive.py": "this file marks a checkout of the project\n",
    "launch/a b.py": "a\n",
    "models/日本.py": "b\n",
    "tests/test_a.py": "not shipped\n",
    "docs/a.md": "not shipped\n",
    "runs/log.txt": "ignored\n",
    ".gitignore": "runs/\n",
    ".ci/run": "not shipped\n",
    "README.md": "not shipped\n",
    "token": "not shipped\n",
}


@pytest.fixture(name="root")
def project(tmp_path, monkeypatch):
    root = tmp_path / "project"
    write(root, FILES)
    subprocess.run(["git", "init", "--quiet", root], check=True)
    monkeypatch.chdir(root)
    return root


def write(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def names(archive):
    with tarfile.open(archive.path) as tar:
        return tar.getnames()


def test_holds_what_git_does_not_ignore(root, tmp_path):
    archive = build(tmp_path, root=root)
    shipped = ["launch/a b.py", "launch/cloud/code_archive.py", "models/日本.py"]
    assert names(archive) == [".kennel_manifest", *shipped]
    assert (archive.files, archive.path.name) == (3, f"{archive.hash}.tar.gz")
    assert archive.bytes == sum(len(FILES[name].encode()) for name in shipped)


def test_the_same_files_give_the_same_bytes(root, tmp_path):
    first = build(tmp_path / "one", root=root)
    for name in FILES:
        os.utime(root / name, (1, 1))
        (root / name).chmod(0o640)
    (root / "runs/log.txt").write_text("other")
    second = build(tmp_path / "two", root=root)
    assert second.hash == first.hash and second.path.read_bytes() == first.path.read_bytes()
    with tarfile.open(first.path) as tar:
        facts = {(one.mtime, one.uid, one.gid, one.uname, one.mode) for one in tar}
    assert facts == {(0, 0, 0, "", 0o644)}


@pytest.mark.parametrize(
    "change",
    [
        lambda root: (root / "launch/a b.py").write_text("A\n"),
        lambda root: (root / "launch/a b.py").rename(root / "launch/c.py"),
        lambda root: (root / "launch/a b.py").chmod(0o755),
        lambda root: (root / "launch/a b.py").unlink(),
        lambda root: (root / "launch/new.py").write_text(""),
    ],
    ids=["content", "name", "executable", "deleted", "new"],
)
def test_another_tree_has_another_hash(root, tmp_path, change):
    before = build(tmp_path, root=root)
    change(root)
    assert build(tmp_path, root=root).hash != before.hash


def test_an_archive_that_exists_is_not_written_again(root, tmp_path):
    first = build(tmp_path, root=root)
    first.path.write_bytes(b"marked")
    assert build(tmp_path, root=root).path.read_bytes() == b"marked"
    assert [path.name for path in tmp_path.glob("*.tmp")] == []


def test_without_git_it_holds_the_packages(tmp_path):
    root = tmp_path / "site-packages"
    write(root, FILES | {"numpy/a.py": "another package\n", "launch/__pycache__/a.pyc": ""})
    archive = build(tmp_path, root=root)
    shipped = ["launch/a b.py", "launch/cloud/code_archive.py", "models/日本.py"]
    assert names(archive) == [".kennel_manifest", *shipped]


def test_gin_files_of_the_user_keep_their_place(root, tmp_path, monkeypatch):
    mine = tmp_path / "mine"
    write(mine, {"gin/my.gin": "STEPS = 3\n", "other/launch/a b.py": "not the project's\n"})
    monkeypatch.chdir(mine)
    assert "gin/my.gin" in names(build(tmp_path, [mine / "gin/my.gin"], root))
    with pytest.raises(CodeError, match="expected a file to copy to the hosts, found none"):
        build(tmp_path, [mine / "gin/none.gin"], root)
    monkeypatch.chdir(mine / "gin")
    with pytest.raises(CodeError, match=r"b\.py is outside of the current folder"):
        build(tmp_path, [mine / "other/launch/a b.py"], root)
    monkeypatch.chdir(mine / "other")
    with pytest.raises(CodeError, match="has the place of another file"):
        build(tmp_path, [mine / "other/launch/a b.py"], root)


def test_links_to_files_are_followed_and_folders_are_not(root, tmp_path):
    (root / "launch/link.py").symlink_to(root / "models/日本.py")
    (root / "launch/folder").symlink_to(tmp_path)
    found = build(tmp_path / "out", root=root)
    assert "launch/link.py" in names(found) and "launch/folder" not in names(found)
    with tarfile.open(found.path) as tar:
        assert tar.extractfile("launch/link.py").read() == b"b\n"


def test_too_much_is_refused_with_the_largest_files(root, tmp_path):
    for number in range(1, 8):
        (root / f"models/data-{number}.bin").write_bytes(bytes(number * 100_000))
    with pytest.raises(CodeError, match=r"would hold 2\.8 MB, and at most 1\.0 MB") as caught:
        build(tmp_path, root=root, limit=1_000_000)
    lines = str(caught.value).splitlines()[1:]
    assert lines == [f"  {n / 10:.1f} MB  models/data-{n}.bin" for n in (7, 6, 5, 4, 3)]


def test_a_name_that_is_not_text_is_refused(root, tmp_path):
    (root / "launch/a\nb.py").write_text("")
    with pytest.raises(CodeError, match="name that is not printable text"):
        build(tmp_path, root=root)


def test_the_project_itself_fits(tmp_path):
    archive = build(tmp_path)
    shipped = names(archive)
    assert archive.bytes < code_archive.MAX_BYTES / 4
    needed = ("launch/recipe.py", "launch/cloud/tpu.lock", "launch/cloud/host_environment.py")
    assert {*needed, "gin_configs/recipes/smoke.gin"} <= set(shipped)
    assert not any(name.startswith(("tests/", "docs/", ".venv")) for name in shipped)
