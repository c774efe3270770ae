"""`Folder` reads no file outside of its folder."""

import os
from contextlib import suppress
from pathlib import Path

import pytest

from actgent.definitions.untrusted_folder_reading import MAX_BYTES, Folder, Unreachable, steps_of
from actgent.errors import InvalidFile

SECRET = "canary outside"


@pytest.fixture
def root(tmp_path):
    """Return a folder with a file, a pipe and links to the outside; a secret is in the parent folder."""
    inside = tmp_path / "root"
    (inside / "a").mkdir(parents=True)
    (inside / "a" / "b.txt").write_text("inside")
    (tmp_path / "secret.txt").write_text(SECRET)
    (inside / "link_out.txt").symlink_to("/etc/passwd")
    (inside / "link_folder").symlink_to(tmp_path)
    (inside / "link_inside.txt").symlink_to("a/b.txt")
    os.mkfifo(inside / "fifo")
    return inside


def test_a_file_is_read(root):
    """Paths with `.` and double slashes are normalized. A missing folder is empty."""
    with Folder.open(root) as folder:
        assert folder.read("a/b.txt") == folder.read("./a//b.txt") == "inside"
        assert folder.names("a") == ["b.txt"]
        assert folder.names("nothing") == []
        assert folder.find("nothing/at/all") is None


@pytest.mark.parametrize(
    "path",
    [
        "../secret.txt",
        "a/../../secret.txt",
        "./././../secret.txt",
        "/etc/passwd",
        "//etc/passwd",
        "~/.ssh/id_rsa",
        "~root/x",
        "C:\\Windows\\win.ini",
        "C:/Windows/win.ini",
        "..\\secret.txt",
        "a\x00/../secret.txt",
        "a/b.txt\n",
        "a/b.txt\u202e",
        "\ud800",
        "",
        " ",
        ".",
        "a/" * 300,
        "a/" * 9 + "b",
    ],
)
def test_invalid_paths_are_rejected_without_disk_access(path):
    """Absolute, escaping and malformed paths are rejected without disk access."""
    with pytest.raises(ValueError, match=r"path|folder"):
        steps_of(path)


@pytest.mark.parametrize(
    "path", ["link_out.txt", "link_folder/secret.txt", "link_inside.txt", "fifo", "a", "b"]
)
def test_links_pipes_and_folders_are_not_read(root, path):
    """Links, pipes and folders are not read, and a pipe does not block."""
    with Folder.open(root) as folder, pytest.raises(Unreachable):
        folder.read(path)


def test_a_folder_that_becomes_a_link_is_not_followed(root):
    """A subfolder that was replaced with a link is not followed."""
    with Folder.open(root) as folder:
        (root / "a").rename(root / "old")
        (root / "a").symlink_to(root.parent)
        with pytest.raises(Unreachable, match="link"):
            folder.read("a/secret.txt")


def test_open_folder_reads_its_files_after_a_move(root):
    """An open `Folder` keeps its descriptor, so a new folder at the old path is not read."""
    with Folder.open(root) as folder:
        root.rename(root.parent / "moved")
        root.mkdir()
        (root / "a").mkdir()
        (root / "a" / "b.txt").write_text("another")
        assert folder.read("a/b.txt") == "inside"


def test_recorded_paths_are_refused(root, recorded_rows):
    """The `path` cases of ../shared/data read no file outside of the folder."""
    paths = [row["payload"] for row in recorded_rows("security_cases.jsonl") if row["area"] == "path"]
    for path in paths:
        for variant in filter(None, (path, path and path.split(" (")[0])):
            with Folder.open(root) as folder, pytest.raises(InvalidFile) as caught:
                folder.read(variant)
            assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "line", "reason"),
    [
        (b"\xef\xbb\xbfa", 1, "byte order mark"),
        ("a".encode("utf-16"), 1, "byte order mark"),
        (b"a\nb\xff", 2, "not UTF-8"),
        (b"a\n\nb\x00", 3, "U\\+0000"),
        (b"a\r\n\x1b[2J", 2, "U\\+001B"),
        (b"a" * (MAX_BYTES + 1), 1, "longer than"),
    ],
)
def test_undecodable_file_is_an_error_with_its_line(root, content, line, reason):
    """Other encodings, control characters and oversized files raise an error with a line number."""
    (root / "x.md").write_bytes(content)
    with Folder.open(root) as folder, pytest.raises(InvalidFile, match=reason) as caught:
        folder.read("x.md")
    assert (caught.value.line, Path(caught.value.file).name) == (line, "x.md")


def test_all_file_descriptors_are_closed(root):
    """All file descriptors are closed after success and failure."""
    descriptors = Path("/proc/self/fd")
    before = len(list(descriptors.iterdir()))
    for path in ("a/b.txt", "link_folder/secret.txt", "fifo", "nothing"):
        with Folder.open(root) as folder, suppress(InvalidFile):
            folder.read(path)
    assert len(list(descriptors.iterdir())) == before
