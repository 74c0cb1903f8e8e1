"""Downloads from a server on this machine that fails, stalls, truncates, ignores ranges and lies."""

import hashlib
import http.server
import io
import re
import threading
from dataclasses import dataclass, field, replace

import h5py
import numpy as np
import pytest

import sageplan.data
from sageplan.data import fetch, official
from sageplan.data.cache import cache_folder, find
from sageplan.errors import ConfigError, DataError, FormatError
from sageplan.tasks import catalogue


def hdf5_bytes(rows=20_000, seed=0):
    buffer = io.BytesIO()
    with h5py.File(buffer, "w") as file:
        file["observations"] = np.random.default_rng(seed).standard_normal((rows, 4))
    return buffer.getvalue()


CONTENT = hdf5_bytes()
HALF = len(CONTENT) // 2


@dataclass
class Script:
    """How the server answers: one entry of `faults` per request, then without fault."""

    content: bytes = CONTENT
    faults: list = field(default_factory=list)
    ranges: bool = True
    etag: str = '"1"'
    length: bool = True
    requests: list = field(default_factory=list)
    release: threading.Event = field(default_factory=threading.Event)


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.0"

    def do_GET(self):
        script = self.server.script
        script.requests.append((self.path, self.headers.get("Range"), self.headers.get("If-Range")))
        fault = script.faults.pop(0) if script.faults else None
        if isinstance(fault, int):
            self.send_error(fault)
            return
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range") or "")
        validated = self.headers.get("If-Range") in (None, script.etag)
        start = int(asked[1]) if asked and script.ranges and validated else 0
        if start and start >= len(script.content):
            self.send_error(416)
            return
        body = script.content[start:]
        self.send_response(206 if start else 200)
        if script.length:
            self.send_header("Content-Length", str(len(body)))
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(script.content) - 1}/{len(script.content)}")
        if script.etag:
            self.send_header("ETag", script.etag)
        self.end_headers()
        if fault in ("truncate", "stall"):
            self.wfile.write(body[: len(body) // 2])
            self.wfile.flush()
            if fault == "stall":
                script.release.wait(20)
            return
        if fault == "close at once":
            return
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_):
        """A client that goes away is what is tested."""


@pytest.fixture
def serve(monkeypatch):
    monkeypatch.setattr(fetch, "BACK_OFF_SECONDS", 0.01)
    monkeypatch.setattr(fetch, "STALL_SECONDS", 0.5)
    monkeypatch.setenv("no_proxy", "*")
    running = []

    def start(**options):
        server = Server(("127.0.0.1", 0), Handler)
        server.script = Script(**options)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        running.append(server)
        return f"http://127.0.0.1:{server.server_port}", server.script

    yield start
    for server in running:
        server.script.release.set()
        server.shutdown()
        server.server_close()


UMAZE = catalogue.get("maze2d-umaze")


def known(content=CONTENT, **changes):
    """A task whose official file is `content`."""
    facts = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest(), **changes}
    return replace(catalogue.get("kitchen-mixed"), **facts)


def get(task, folder, *mirrors):
    return fetch.get(task, folder, mirrors=mirrors, progress=False)


def only(folder):
    return sorted(path.name for path in folder.iterdir())


# ---- what works ------------------------------------------------------------------------------------


def test_a_file_arrives_whole_under_its_official_name(serve, tmp_path):
    address, script = serve()
    path = get("maze2d-umaze", tmp_path / "new" / "folder", address)
    assert path == tmp_path / "new" / "folder" / "maze2d-umaze-sparse-v1.hdf5"
    assert path.read_bytes() == CONTENT
    assert only(path.parent) == [path.name]
    assert script.requests == [("/maze2d-umaze-sparse-v1.hdf5", None, None)]
    assert get("maze2d-umaze-v1", path.parent, address) == path
    assert len(script.requests) == 1, "what is there is not downloaded again"


def test_patterns_of_addresses():
    source = "http://rail.eecs.berkeley.edu/datasets/offline_rl/maze2d/maze2d-umaze-sparse-v1.hdf5"
    assert official.address(official.ADDRESSES[0], UMAZE) == UMAZE.url == source
    assert official.address("http://a/b/", UMAZE) == "http://a/b/maze2d-umaze-sparse-v1.hdf5"
    assert official.address("http://a/{file}?download=1", UMAZE) == "http://a/maze2d-umaze-sparse-v1.hdf5?download=1"


def test_the_official_addresses_are_tried_in_order(serve, tmp_path, monkeypatch):
    gone, first = serve(faults=[404])
    there, second = serve()
    monkeypatch.setattr(official, "ADDRESSES", (gone + "/{source}", there + "/copies/{file}"))
    path = sageplan.data.get("maze2d-umaze", tmp_path, progress=False)
    assert path.read_bytes() == CONTENT
    assert first.requests == [("/maze2d/maze2d-umaze-sparse-v1.hdf5", None, None)]
    assert second.requests == [("/copies/maze2d-umaze-sparse-v1.hdf5", None, None)]


def test_the_cache_is_the_default_folder(serve, tmp_path, monkeypatch):
    address, _ = serve()
    monkeypatch.setenv("SAGEPLAN_DATA", str(tmp_path / "mine"))
    assert find(UMAZE) is None
    path = fetch.get("maze2d-umaze", mirrors=[address], progress=False)
    assert path.parent == tmp_path / "mine" == cache_folder()
    assert find(UMAZE) == path
    path.rename(path.with_name("maze2d-umaze-v1.hdf5"))
    assert find(UMAZE).name == "maze2d-umaze-v1.hdf5"


def test_the_cache_follows_the_platform(monkeypatch, tmp_path):
    monkeypatch.delenv("SAGEPLAN_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("sys.platform", "linux")
    assert cache_folder() == tmp_path / "sageplan" / "data"
    monkeypatch.setattr("sys.platform", "darwin")
    assert cache_folder().parts[-4:] == ("Library", "Caches", "sageplan", "data")
    monkeypatch.setattr("sys.platform", "win32")
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "local"))
    assert cache_folder() == tmp_path / "local" / "sageplan" / "data"


def test_a_server_that_does_not_tell_the_length(serve, tmp_path):
    address, _ = serve(length=False)
    assert get(UMAZE, tmp_path, address).read_bytes() == CONTENT


def test_progress_is_told(serve, tmp_path, capsys):
    big = CONTENT + bytes(3_000_000)
    address, _ = serve(content=big)
    fetch.get(known(big), tmp_path, mirrors=[address])
    assert "kitchen-mixed-v0: 3 of 3 · 0 s" in capsys.readouterr().err


# ---- interruptions ---------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["truncate", "stall"])
def test_an_interrupted_download_goes_on_where_it_was(serve, tmp_path, fault):
    address, script = serve(faults=[fault])
    assert get(known(), tmp_path, address).read_bytes() == CONTENT
    assert [request[1:] for request in script.requests] == [(None, None), (f"bytes={HALF}-", '"1"')]
    assert len(only(tmp_path)) == 1


def test_several_interruptions(serve, tmp_path):
    address, script = serve(faults=["truncate", 503, "truncate"])
    assert get(known(), tmp_path, address).read_bytes() == CONTENT
    starts = [int(r[1][6:-1]) for r in script.requests[1:]]
    assert starts == sorted(starts)
    assert len(set(starts)) == 2, "an error in between loses nothing"


def test_the_next_call_goes_on_too(serve, tmp_path):
    address, script = serve(faults=["truncate"] + [500] * 3)
    with pytest.raises(DataError, match="HTTP 500"):
        get(known(), tmp_path, address)
    part = tmp_path / (known().file_name + ".part")
    assert part.read_bytes() == CONTENT[:HALF]
    assert get(known(), tmp_path, address).read_bytes() == CONTENT
    assert script.requests[-1][1] == f"bytes={HALF}-"
    assert len(only(tmp_path)) == 1


def test_tries_are_counted_anew_when_one_has_got_on(serve, tmp_path, monkeypatch):
    monkeypatch.setattr(fetch, "_GOT_ON", 1000)
    address, script = serve(faults=["truncate"] * 9)  # each sends half of the rest
    assert get(known(), tmp_path, address).read_bytes() == CONTENT
    assert len(script.requests) == 10 > fetch.TRIES


def test_a_server_that_never_gets_further_is_given_up(serve, tmp_path, monkeypatch):
    monkeypatch.setattr(fetch, "_GOT_ON", 1000)
    address, script = serve(faults=["truncate"] * 99, ranges=False)
    with pytest.raises(DataError, match="connection ended after"):
        get(known(), tmp_path, address)
    assert len(script.requests) == 4


def test_a_network_that_goes_away_meanwhile_is_waited_for(serve, tmp_path, monkeypatch):
    address, _ = serve(faults=["truncate"])
    real, calls = fetch.urllib.request.urlopen, []

    def flaky(*args, **kwargs):
        calls.append(args)
        if len(calls) == 2:
            raise fetch.urllib.error.URLError(fetch.socket.gaierror(-3, "Temporary failure in name resolution"))
        return real(*args, **kwargs)

    monkeypatch.setattr(fetch.urllib.request, "urlopen", flaky)
    assert get(known(), tmp_path, address).read_bytes() == CONTENT
    assert len(calls) == 3


def test_a_mirror_that_does_not_answer_leaves_the_part_of_another_alone(serve, tmp_path):
    address, script = serve(faults=["truncate"] + [500] * 3)
    missing, _ = serve(faults=[404])
    other, _ = serve(content=CONTENT[:-1])
    with pytest.raises(DataError, match="HTTP 404"):
        get(known(), tmp_path, address, missing, other)
    assert (tmp_path / (known().file_name + ".part")).read_bytes() == CONTENT[:HALF]
    assert get(known(), tmp_path, address).read_bytes() == CONTENT
    assert script.requests[-1][1] == f"bytes={HALF}-"


def test_what_was_interrupted_while_it_was_verified_is_not_downloaded_again(serve, tmp_path, monkeypatch):
    address, script = serve()
    with monkeypatch.context() as patch:
        patch.setattr(fetch, "_fault", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            get(known(), tmp_path, address)
    assert only(tmp_path) == [known().file_name + ".part", known().file_name + ".part.json"]
    assert get(known(), tmp_path, address).read_bytes() == CONTENT
    assert len(script.requests) == 1


def test_pieces_that_do_not_fit_are_asked_for_once_more(serve, tmp_path):
    address, script = serve(faults=["truncate"] + [500] * 3, etag="", content=CONTENT[::-1])
    with pytest.raises(DataError):
        get(known(), tmp_path, address)
    script.content = CONTENT  # another file of the same size, which a server without validators does not tell
    assert get(known(), tmp_path, address).read_bytes() == CONTENT
    assert [request[1] for request in script.requests[-2:]] == [f"bytes={HALF}-", None]


def test_without_a_validator_the_size_must_agree(serve, tmp_path):
    address, script = serve(faults=["truncate"], etag="")
    assert get(known(), tmp_path, address).read_bytes() == CONTENT
    assert script.requests[1][1:] == (f"bytes={HALF}-", None)


def test_a_server_that_ignores_ranges_sends_all_anew(serve, tmp_path):
    address, script = serve(faults=["truncate"], ranges=False)
    assert get(known(), tmp_path, address).read_bytes() == CONTENT
    assert script.requests[1][1] is not None


def test_a_file_that_changed_meanwhile_is_not_joined_with_the_old_one(serve, tmp_path):
    address, script = serve(faults=["truncate"] + [500] * 3)
    with pytest.raises(DataError):
        get(UMAZE, tmp_path, address)
    script.content, script.etag = hdf5_bytes(seed=1), '"2"'
    assert len(script.content) == len(CONTENT)
    assert get(UMAZE, tmp_path, address).read_bytes() == script.content


@pytest.mark.parametrize("rows", [30_000, 5_000])
def test_a_file_of_another_size_without_a_validator_starts_again(serve, tmp_path, rows):
    address, script = serve(faults=["truncate"] + [500] * 3, etag="")
    with pytest.raises(DataError):
        get(UMAZE, tmp_path, address)
    script.content = hdf5_bytes(rows)
    assert get(UMAZE, tmp_path, address).read_bytes() == script.content


def test_parts_of_two_addresses_are_not_joined(serve, tmp_path):
    bad, _ = serve(faults=["truncate"] + ["close at once"] * 3, content=hdf5_bytes(seed=1))
    good, script = serve()
    assert get(UMAZE, tmp_path, bad, good).read_bytes() == CONTENT
    assert script.requests[0][1] is None


def test_a_part_of_unknown_origin_is_dropped(serve, tmp_path):
    (tmp_path / (UMAZE.file_name + ".part")).write_bytes(b"x" * 1000)
    (tmp_path / (UMAZE.file_name + ".part.json")).write_text("{nonsense")
    address, script = serve()
    assert get(UMAZE, tmp_path, address).read_bytes() == CONTENT
    assert script.requests[0][1] is None


# ---- lies and refusals -----------------------------------------------------------------------------


def test_a_wrong_hash_is_never_let_in_and_the_next_mirror_is_asked(serve, tmp_path):
    lie = bytearray(CONTENT)
    lie[5000] ^= 1
    lying, first = serve(content=bytes(lie))
    honest, _ = serve()
    assert get(known(), tmp_path, lying, honest).read_bytes() == CONTENT
    assert len(first.requests) == 1, "asking again would not help"


def test_a_wrong_hash_alone_leaves_nothing_behind(serve, tmp_path):
    address, _ = serve()
    with pytest.raises(DataError, match=r"what it sent has SHA-256 \w{64}, the official file 0000") as error:
        get(known(sha256="0000"), tmp_path, address)
    assert only(tmp_path) == []
    assert str(error.value).count("\n") == 0


def test_a_wrong_size_is_seen_before_the_download(serve, tmp_path):
    address, _ = serve()
    with pytest.raises(DataError, match=f"{len(CONTENT):,} bytes are offered, the official file has 99"):
        get(known(bytes=99), tmp_path, address)
    assert only(tmp_path) == []


@pytest.mark.parametrize("content", [b"<html>a login page</html>", CONTENT[:HALF]])
def test_what_is_no_whole_hdf5_file_is_not_let_in(serve, tmp_path, content):
    address, _ = serve(content=content)
    with pytest.raises(DataError, match="is no whole HDF5 file"):
        get(UMAZE, tmp_path, address)
    assert only(tmp_path) == []


@pytest.mark.parametrize(("status", "requests"), [(404, 1), (403, 1), (503, 4), (429, 4)])
def test_how_often_an_error_is_asked_again(serve, tmp_path, status, requests):
    address, script = serve(faults=[status] * 9)
    with pytest.raises(DataError, match=f"HTTP {status}"):
        get(UMAZE, tmp_path, address)
    assert len(script.requests) == requests


def test_waiting_between_tries_doubles(serve, tmp_path, monkeypatch):
    waits = []
    monkeypatch.setattr(fetch.time, "sleep", waits.append)
    address, _ = serve(faults=[500] * 9)
    with pytest.raises(DataError):
        get(UMAZE, tmp_path, address)
    assert waits == [0.01, 0.02, 0.04]


def test_offline_says_once_which_file_to_put_where(tmp_path, monkeypatch):
    def unknown(*_, **__):
        raise fetch.urllib.error.URLError(fetch.socket.gaierror(-2, "Name or service not known"))

    monkeypatch.setattr(fetch.urllib.request, "urlopen", unknown)
    monkeypatch.setattr(fetch.time, "sleep", lambda _: pytest.fail("waiting does not help"))
    with pytest.raises(DataError) as error:
        fetch.get("kitchen-mixed", tmp_path, progress=False)
    text = str(error.value)
    assert "\n" not in text
    assert "(rail.eecs.berkeley.edu, huggingface.co: Name or service not known)" in text
    assert catalogue.get("kitchen-mixed").url in text
    assert str(tmp_path / "kitchen_microwave_kettle_bottomburner_light-v0.hdf5") in text
    assert "19,560,760 bytes" in text
    assert "build" not in text
    with pytest.raises(DataError, match=r"or make one like it: sageplan data build maze2d-umaze-v1$"):
        fetch.get("maze2d-umaze", tmp_path, progress=False)
    assert only(tmp_path) == []


def test_nobody_listens(tmp_path, monkeypatch):
    monkeypatch.setattr(fetch, "BACK_OFF_SECONDS", 0)
    monkeypatch.setenv("no_proxy", "*")
    with pytest.raises(DataError, match="Connection refused"):
        get(UMAZE, tmp_path, "http://127.0.0.1:9")


def test_a_mirror_that_is_no_address(tmp_path):
    with pytest.raises(DataError, match="unknown url type"):
        get(UMAZE, tmp_path, "somewhere")


# ---- the folder ------------------------------------------------------------------------------------


def test_a_damaged_file_in_the_cache_is_named_and_kept(tmp_path):
    path = tmp_path / UMAZE.file_name
    path.write_bytes(CONTENT[:HALF])
    with pytest.raises(FormatError, match=r"is no whole HDF5 file: delete or move it, then get it again"):
        get(UMAZE, tmp_path, "http://127.0.0.1:9")
    assert path.exists()


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"file.*cannot be written \((File exists|Not a directory)\)"):
        get(UMAZE, tmp_path / "file", "http://127.0.0.1:9")


def test_a_full_disk_is_not_taken_for_the_network(serve, tmp_path, monkeypatch):
    address, script = serve()

    def full(*_):
        raise OSError(28, "No space left on device")

    real = fetch.Path.open
    monkeypatch.setattr(fetch.Path, "open", lambda path, *a, **k: _Full(real(path, *a, **k), full, path))
    with pytest.raises(DataError, match=r"cannot be written \(No space left on device\)"):
        get(UMAZE, tmp_path, address)
    assert len(script.requests) == 1


class _Full:
    """A file that takes nothing if it is a part."""

    def __init__(self, file, write, path):
        self._file = file
        if path.suffix == ".part":
            self.write = write

    def __getattr__(self, name):
        return getattr(self._file, name)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._file.close()


def test_a_lock_that_was_replaced_meanwhile_is_no_lock(tmp_path, monkeypatch):
    fcntl = pytest.importorskip("fcntl")
    path, real = tmp_path / UMAZE.file_name, fcntl.flock

    def late(file, how):
        lock = path.with_name(path.name + ".lock")
        lock.unlink()
        lock.write_text("")
        real(file, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with pytest.raises(ConfigError, match="another process"), fetch._alone(path):
        pytest.fail("two would have it")


def test_two_downloads_of_one_file_do_not_mix(serve, tmp_path):
    pytest.importorskip("fcntl")
    address, _ = serve()
    with fetch._alone(tmp_path / UMAZE.file_name), pytest.raises(ConfigError, match="another process"):
        get(UMAZE, tmp_path, address)
    assert get(UMAZE, tmp_path, address).exists()
