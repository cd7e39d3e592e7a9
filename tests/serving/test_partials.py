import errno
import os
import signal
import subprocess
import sys
import threading

import pytest

from serving import BundleError, BundleWriter, files, partials, read_bundle

WRITER = """
import sys
from pathlib import Path
from serving import BundleWriter
with BundleWriter(sys.argv[1], overwrite=len(sys.argv) > 2) as writer:
    (writer.path / "onnx").mkdir()
    (writer.path / "onnx" / "policy.onnx").write_bytes(b"half")
    print("writing", flush=True)
    sys.stdin.read()
"""


def start_writer(target, *options):
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(target), *options],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert writer.stdout is not None and writer.stdout.readline() == b"writing\n"
    return writer


def entries(directory):
    return sorted(path.name for path in directory.iterdir())


def put_model(writer, data=b"model"):
    (writer.path / "onnx").mkdir()
    (writer.path / "onnx" / "policy.onnx").write_bytes(data)


@pytest.fixture
def parts(leaky, bundle_path):
    return leaky.manifest(), read_bundle(bundle_path).initial_carry, leaky.golden()


def test_the_next_writer_removes_what_a_killed_one_left(parts, tmp_path):
    with start_writer(tmp_path / "policy") as killed:
        killed.kill()
    assert killed.returncode == -signal.SIGKILL
    (left,) = entries(tmp_path)
    assert left.startswith(".policy.") and left.endswith(".partial")
    with BundleWriter(tmp_path / "policy") as writer:
        assert left not in entries(tmp_path)
        put_model(writer)
        writer.commit(*parts)
    assert entries(tmp_path) == ["policy"]


def test_what_a_killed_writer_left_goes_although_the_target_is_refused(own_bundle):
    with start_writer(own_bundle, "overwrite") as killed:
        killed.kill()
    assert len(entries(own_bundle.parent)) == 2
    with pytest.raises(BundleError, match="exists already"):
        BundleWriter(own_bundle).__enter__()
    assert entries(own_bundle.parent) == ["own"]


def test_only_what_was_left_beside_the_same_target_is_removed(tmp_path):
    others = [
        ".other.0123456789ab.partial",
        ".policy.partial",
        ".policy.backup.partial",
        ".policy.2.0123456789ab.partial",
    ]
    for name in others:
        (tmp_path / name).mkdir()
    (tmp_path / ".policy.0123456789ab.partial").mkdir()
    partials.remove_abandoned(tmp_path / "policy")
    assert entries(tmp_path) == sorted(others)


def test_of_two_writers_to_one_target_one_wins_and_the_other_is_told(parts, tmp_path):
    with start_writer(tmp_path / "policy") as living:
        with BundleWriter(tmp_path / "policy") as writer:
            assert len(entries(tmp_path)) == 2
            put_model(writer)
            writer.commit(*parts)
        assert len(entries(tmp_path)) == 2
        living.communicate()
    assert entries(tmp_path) == ["policy"]
    assert read_bundle(tmp_path / "policy").manifest.name == "leaky"


def test_two_writers_that_finish_at_once_leave_one_whole_bundle(parts, tmp_path, monkeypatch):
    # Both pass the check of the target before either moves its own in place.
    both_checked = threading.Barrier(2)
    real = files.sync_tree
    monkeypatch.setattr(BundleWriter, "_check_target", lambda self: None)
    monkeypatch.setattr(files, "sync_tree", lambda root: (real(root), both_checked.wait()))
    outcomes = {}

    def write(data):
        try:
            with BundleWriter(tmp_path / "policy") as writer:
                put_model(writer, data)
                writer.commit(*parts)
            outcomes[data] = None
        except BundleError as error:
            outcomes[data] = error

    threads = [threading.Thread(target=write, args=(data,)) for data in (b"one", b"other")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (winner,) = [data for data, error in outcomes.items() if error is None]
    (error,) = [error for error in outcomes.values() if error is not None]
    assert "exists already" in str(error)
    assert (tmp_path / "policy" / "onnx" / "policy.onnx").read_bytes() == winner
    assert entries(tmp_path) == ["policy"]


def test_a_bundle_moved_aside_by_a_writer_killed_then_comes_back(own_bundle):
    os.rename(own_bundle, own_bundle.parent / ".own.0123456789ab.replaced")
    partials.remove_abandoned(own_bundle)
    assert read_bundle(own_bundle).manifest.name == "leaky"
    assert entries(own_bundle.parent) == ["own"]


def test_a_bundle_moved_aside_goes_once_the_new_one_is_there(own_bundle):
    (own_bundle.parent / ".own.0123456789ab.replaced").mkdir()
    partials.remove_abandoned(own_bundle)
    assert entries(own_bundle.parent) == ["own"]


def test_an_interrupt_between_the_two_moves_keeps_the_old_bundle(parts, own_bundle, monkeypatch):
    monkeypatch.setattr(files, "_exchange", lambda a, b: False)
    real, before = os.rename, (own_bundle / "onnx" / "policy.onnx").read_bytes()

    def interrupted(source, target):
        real(source, target)
        if str(target).endswith(".replaced"):
            raise KeyboardInterrupt

    monkeypatch.setattr(os, "rename", interrupted)
    with (
        pytest.raises(KeyboardInterrupt),
        BundleWriter(own_bundle, overwrite=True) as writer,
    ):
        put_model(writer, b"newer model")
        writer.commit(*parts)
    monkeypatch.undo()
    assert entries(own_bundle.parent) == ["own"]
    assert (own_bundle / "onnx" / "policy.onnx").read_bytes() == before


@pytest.mark.parametrize("code", [errno.ENOTSUP, errno.EBADF])
def test_without_locks_bundles_are_written_and_nothing_is_removed(
    parts, tmp_path, monkeypatch, code
):
    import fcntl

    def refuse(descriptor, operation):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", refuse)
    left = ".policy.0123456789ab.partial"
    (tmp_path / left).mkdir()
    with BundleWriter(tmp_path / "policy") as writer:
        put_model(writer)
        writer.commit(*parts)
    assert entries(tmp_path) == [left, "policy"]


def test_a_partial_taken_for_abandoned_before_its_lock_is_made_again(tmp_path, monkeypatch):
    real, taken = partials._lock, []

    def lose_the_first(path):
        if not taken:
            taken.append(path)
            path.rmdir()
        return real(path)

    monkeypatch.setattr(partials, "_lock", lose_the_first)
    partial = partials.Partial(tmp_path / "policy", directory=True)
    assert partial.path != taken[0] and partial.path.is_dir()
    partial.remove()
    assert entries(tmp_path) == []


def test_a_half_written_file_of_a_killed_process_goes_with_the_next_write(tmp_path):
    script = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from serving import files\n"
        "files.sync = lambda path: os.kill(os.getpid(), 9)\n"
        "files.write_atomically(Path(sys.argv[1]), b'half')\n"
    )
    target = tmp_path / "carry"
    killed = subprocess.run([sys.executable, "-c", script, str(target)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert len(entries(tmp_path)) == 1
    files.write_atomically(target, b"whole")
    assert entries(tmp_path) == ["carry"] and target.read_bytes() == b"whole"
