"""Test servers obey, and nothing of them outlives the test: real processes, killed for real."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from doorbuster.testing import _ports, _processes, _spawn, servers
from doorbuster.testing.servers import (
    Server,
    ServerError,
    free_ports,
    listening,
    logged,
    need,
    required,
)

ECHO = """
import socket, sys, threading
taken = socket.create_server(("127.0.0.1", int(sys.argv[1])))
print("listening on", sys.argv[1], flush=True)
def echo(link):
    while data := link.recv(4096):
        link.sendall(data)
while True:
    threading.Thread(target=echo, args=(taken.accept()[0],), daemon=True).start()
"""

STUBBORN = """
import signal, socket, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
taken = socket.create_server(("127.0.0.1", int(sys.argv[1])))
signal.pause()
"""

WITH_CHILD = """
import os, socket, sys, time
if os.fork() == 0:
    os.setsid()  # out of the session, as each worker of some databases is
    while True:
        with open("ticks", "a") as ticks:
            ticks.write(".")
        time.sleep(0.002)  # works on without filling the disk, until it is frozen or killed
taken = socket.create_server(("127.0.0.1", int(sys.argv[1])))
taken.accept()
time.sleep(60)  # a child process, ended by the test long before
"""

pytestmark = pytest.mark.slow


def python(script: str, *words: str) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", script, *words]


@pytest.fixture
def make(tmp_path: Path):
    """``make(script)``: a server of a script; all of them are killed after the test."""
    made: list[Server] = []

    def make(script: str = ECHO, *, name: str = "echo", **options) -> Server:
        options = {"ready": listening(), "folder": tmp_path / name} | options
        made.append(Server(python(script, "{port}"), name=name, **options))
        return made[-1]

    yield make
    for server in made:
        server.kill()


def connect(server: Server, timeout_s: float = 2.0) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=timeout_s)


def says(server: Server) -> bytes:
    with connect(server) as link:
        link.sendall(b"hello")
        return link.recv(100)


def is_alive(pid: int) -> bool:
    found = _processes.look(pid)
    return found is not None and found.state not in "ZX"


def wait_for(check, seconds: float = 5.0) -> bool:
    deadline_s = time.monotonic() + seconds
    while not (good := check()) and time.monotonic() < deadline_s:
        time.sleep(0.005)  # what another process does has no clock of ours
    return good


def child_of(server: Server) -> int:
    """The one descendant, once it works."""
    assert wait_for(lambda: (server.folder / "ticks").exists())
    (child,) = [one.pid for one in _processes.family(server._leader) if one.pid != server.pid]
    return child


# start, stop, kill, restart


def test_a_context_runs_a_server_and_ends_it(make):
    """It answers inside the block; after it the process is gone and the exit code is told."""
    with make() as server:
        assert server.is_running
        assert server.returncode is None
        assert says(server) == b"hello"
        pid = server.pid
    assert not is_alive(pid)
    assert not server.is_running
    assert server.returncode == -signal.SIGTERM


def test_its_output_is_in_its_own_folder(make, tmp_path):
    """Stdout and stderr are one file; tail gives the last lines of it."""
    script = "import sys; print(1, 2, flush=True); sys.stderr.write('three\\n');" + ECHO
    with make(script, ready=logged("listening on")) as server:
        assert server.log == tmp_path / "echo" / "server.log"
        assert server.tail(2) == f"three\nlistening on {server.port}"
        assert server.tail() == f"1 2\nthree\nlistening on {server.port}"
        assert server.tail(0) == ""


def test_stop_and_kill_of_an_ended_server_do_nothing(make):
    """Also before the first start."""
    server = make()
    server.stop()
    server.kill()
    server.thaw()
    assert server.returncode is None
    server.start()
    server.stop()
    server.stop()
    server.kill()
    server.thaw()
    assert server.returncode == -signal.SIGTERM


def test_stop_sends_the_servers_own_signal(make):
    """PostgreSQL's fast stop is SIGINT."""
    script = "import os, signal; signal.signal(signal.SIGINT, lambda *_: os._exit(7));" + ECHO
    with make(script, stop_signal=signal.SIGINT) as server:
        pass
    assert server.returncode == 7


def test_a_server_that_ignores_its_signal_is_killed_after_stop_s(make):
    """A stop is bounded."""
    with make(STUBBORN, stop_s=0.1) as server:
        begin_s = time.monotonic()
        server.stop()
        assert 0.1 <= time.monotonic() - begin_s < 2
    assert server.returncode == -signal.SIGKILL


def test_kill_gives_no_time(make):
    """Kill is SIGKILL, whatever the server would do about a signal."""
    server = make(STUBBORN).start()
    server.kill()
    assert not server.is_running
    assert server.returncode == -signal.SIGKILL


def test_a_restart_keeps_ports_and_folder_and_begins_a_new_process(make):
    """After a kill, ``start`` does the same."""
    server = make().start()
    pid, ports = server.pid, dict(server.ports)
    (server.folder / "data").write_text("kept")
    server.restart()
    assert (server.pid != pid, dict(server.ports)) == (True, ports)
    server.kill()
    server.start()
    assert dict(server.ports) == ports
    assert (server.folder / "data").read_text() == "kept"
    assert says(server) == b"hello"
    assert server.tail(9).count("listening on") == 3


def test_logged_means_since_this_start(make):
    """A line of an earlier start does not make a server ready."""
    script = "import os; os.path.exists('once') and os._exit(3); open('once', 'w');" + ECHO
    server = make(script, ready=logged("listening on")).start()
    server.stop()
    with pytest.raises(ServerError, match=r"ended before it was ready \(exit code 3\)"):
        server.start()


def test_a_running_server_cannot_be_started_again(make):
    """The first process would be lost."""
    server = make().start()
    pid = server.pid
    with pytest.raises(ServerError, match="'echo' is running already"):
        server.start()
    assert server.pid == pid


def test_a_stopped_server_has_no_pid_and_cannot_be_frozen(make):
    """A number that is gone may be another's."""
    server = make()
    with pytest.raises(ServerError, match="'echo' is not running"):
        server.pid  # noqa: B018 - a property that raises
    with pytest.raises(ServerError, match="'echo' is not running"):
        server.freeze()


# not ready


def test_a_server_that_ends_early_says_how(make):
    """Name, command, exit code, and the last lines of its log are in the error."""
    server = make("import sys; print('no disk left', flush=True); sys.exit(3)", name="broken")
    with pytest.raises(ServerError) as told:
        server.start()
    for part in ("'broken'", "ended before it was ready", "exit code 3", "no disk left", "-I -S"):
        assert part in str(told.value)
    assert server.returncode == 3


def test_a_server_that_is_not_ready_in_time_is_ended(make):
    """Start is bounded, and the check's own fault is the cause."""
    pids = []

    def ready(server):
        pids.append(server.pid)
        raise RuntimeError("password wrong")

    server = make(start_s=0.1, ready=ready)
    with pytest.raises(ServerError, match=r"'echo' was not ready within 0\.1 s") as told:
        server.start()
    assert isinstance(told.value.__cause__, RuntimeError)
    assert not is_alive(pids[0])
    assert server.returncode == -signal.SIGKILL


def test_a_server_whose_port_another_program_has_is_not_ready(make):
    """The answer of a stranger's listener is not its own: the early end is told."""
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        ports = {"port": stranger.getsockname()[1]}
        # the child ends a little after the stranger's listener was found
        slow = "import sys, time; time.sleep(0.05); sys.exit(5)"
        with pytest.raises(ServerError, match="exit code 5"):
            make(slow, ports=ports, ready=lambda s: listening()(s) and not s.is_running).start()


def test_a_missing_program_is_named(tmp_path):
    """It is not a shell's message in a log."""
    server = Server(["no-such-server"], name="x", folder=tmp_path, ready=listening())
    with pytest.raises(ServerError, match="no program 'no-such-server'"):
        server.start()
    assert not server.is_running


# ports, folders, fields


def test_two_servers_have_their_own_ports_and_folders(make):
    """Both run at once, and each answers."""
    with make(name="one") as one, make(name="two") as two:
        assert one.port != two.port
        assert one.folder != two.folder
        assert says(one) == says(two) == b"hello"


def test_a_folder_serves_one_running_server(make, monkeypatch):
    """The second is refused while the first runs, and not after."""
    monkeypatch.setattr(_spawn, "_LOCK_S", 0.01)
    one, two = make(name="one"), make(name="two")
    two.folder, two.log = one.folder, one.log
    one.start()
    with pytest.raises(ServerError, match="shares its folder"):
        two.start()
    assert says(one) == b"hello"
    one.stop()
    two.start()


def test_fields_are_filled_into_command_and_env_and_other_braces_stay(tmp_path):
    """JSON and code need no doubled braces."""
    script = (
        "import os, sys; print(sys.argv[1:], os.environ['WHERE'], flush=True); sys.stdin.read()"
    )
    server = Server(
        python(script + "; import signal; signal.pause()", "{a}/{b}", '{"x": {y}}'),
        name="x",
        folder=tmp_path,
        ports=("a", "b"),
        ready=logged("]"),
        env={"WHERE": "{folder}:{b}"},
    )
    a, b = server.ports["a"], server.ports["b"]
    words = [f"{a}/{b}", '{"x": {y}}']
    assert server.port == a
    with server:
        assert server.tail() == f"{words} {tmp_path}:{b}"


def test_given_ports_are_used(make):
    """A mapping names ports that the caller drew."""
    (port,) = free_ports(1)
    with make(ports={"port": port}) as server:
        assert server.port == port
        assert says(server) == b"hello"


def test_free_ports_are_distinct_free_and_below_the_kernels_own():
    """No outgoing connection and no bind to port 0 takes one meanwhile."""
    ports = free_ports(20)
    kernels = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert len(set(ports)) == 20
    assert all(10_000 <= port < kernels for port in ports)
    for port in ports:
        socket.create_server(("127.0.0.1", port)).close()
    more = free_ports(50)
    assert not set(ports) & set(more)
    _ports.release_ports([*ports, *more])
    assert free_ports(0) == ()


def test_free_ports_with_offsets_hold_those_too(monkeypatch):
    """A broker takes PORT and PORT + 1: a held neighbour rules a port out, and is not let go."""
    draws = iter([20_000, 20_005])
    monkeypatch.setattr(_ports, "_draw", lambda first, last: next(draws))
    monkeypatch.setattr(_ports, "_is_free", lambda port: True)
    monkeypatch.setattr(_ports, "_held", {20_001: None})
    monkeypatch.setattr(sys, "platform", "one without marks")
    assert free_ports(1, offsets=(1, -1)) == (20_005,)
    assert set(_ports._held) == {20_001, 20_004, 20_005, 20_006}


def test_without_a_free_port_nothing_is_held(monkeypatch):
    """The failure names what was asked for."""
    held = set(_ports._held)
    monkeypatch.setattr(_ports, "_is_free", lambda port: False)
    with pytest.raises(OSError, match="no 3 free ports"):
        free_ports(3)
    with pytest.raises(OSError, match="with offsets"):
        free_ports(1, offsets=(60_000,))
    assert set(_ports._held) == held


def test_two_processes_never_hold_the_same_port():
    """What this process drew, another one passes over, also while nothing listens there."""
    (port,) = free_ports(1)
    script = (
        "import sys; from doorbuster.testing._ports import _hold; print(_hold(int(sys.argv[1])))"
    )
    command = [sys.executable, "-c", script, str(port)]
    assert subprocess.check_output(command, text=True) == "False\n"
    _ports.release_ports([port])
    assert subprocess.check_output(command, text=True) == "True\n"


def test_a_forgotten_servers_ports_are_free_again(tmp_path):
    """Ports are held as long as their server is."""
    server = Server(["x"], name="x", folder=tmp_path, ready=listening(), ports=("a", "b"))
    ports = set(server.ports.values())
    assert ports <= set(_ports._held)
    del server
    free_ports(0)
    assert not ports & set(_ports._held)


def test_a_server_may_be_forgotten_in_the_middle_of_a_draw(tmp_path, monkeypatch):
    """The collector runs where it likes, with the lock of a draw held too: nothing waits."""
    forgotten = [Server(["x"], name="x", folder=tmp_path, ready=listening())]
    is_free = _ports._is_free

    def collected_here(port: int) -> bool:
        forgotten.clear()
        return is_free(port)

    monkeypatch.setattr(_ports, "_is_free", collected_here)
    (port,) = free_ports(1)
    assert not forgotten
    _ports.release_ports([port])


# freeze and thaw


def test_a_frozen_server_does_not_answer_and_a_thawed_one_does(make):
    """Its socket still takes connections and bytes, so a client sees silence, not a refusal."""
    with make() as server, connect(server, 0.1) as link:
        server.freeze()
        server.freeze()
        assert server.is_running
        link.sendall(b"hello")
        with pytest.raises(TimeoutError):
            link.recv(100)
        server.thaw()
        link.settimeout(2)
        assert link.recv(100) == b"hello"
        server.thaw()


def test_stop_thaws_a_frozen_server_first(make):
    """So it can end in its own way."""
    script = "import os, signal; signal.signal(signal.SIGTERM, lambda *_: os._exit(7));" + ECHO
    server = make(script).start()
    server.freeze()
    server.stop()
    assert server.returncode == 7


def test_a_frozen_server_can_be_killed(make):
    """And started again, not frozen."""
    server = make().start()
    server.freeze()
    server.kill()
    assert server.returncode == -signal.SIGKILL
    server.start()
    assert says(server) == b"hello"


def test_freeze_and_thaw_reach_workers_in_sessions_of_their_own(make):
    """A database whose postmaster is stopped while its workers run is not frozen."""
    with make(WITH_CHILD, ready=lambda _: True) as server:
        ticks = server.folder / "ticks"
        child = child_of(server)
        server.freeze()
        before = ticks.stat().st_size
        time.sleep(0.03)  # a child that was not frozen would write in it, 15 times
        assert ticks.stat().st_size == before
        assert _processes.look(child).state == "T"
        server.thaw()
        assert wait_for(lambda: ticks.stat().st_size > before)


def test_a_freeze_that_is_not_seen_to_hold_is_an_error(make, monkeypatch):
    """What cannot be stopped in time (it waits for a disk) is not called frozen."""
    server = make().start()
    with monkeypatch.context() as patch:
        patch.setattr(_processes, "send", lambda *_: True)  # as if the signal did not arrive yet
        patch.setattr(servers, "_FREEZE_S", 0.02)
        with pytest.raises(ServerError, match=r"'echo' could not be frozen \(running\)"):
            server.freeze()
    assert says(server) == b"hello"


# whose processes


@pytest.mark.parametrize("way", ["stop", "kill", "crash"])
def test_children_end_with_their_server(make, way):
    """However it ends, also those that left its session while it lived."""
    server = (
        make(WITH_CHILD).start()
        if way != "crash"
        else make(WITH_CHILD.replace("os.setsid()", "pass")).start()
    )
    child = child_of(server)
    if way == "crash":
        os.kill(server.pid, signal.SIGKILL)
        assert wait_for(lambda: not server.is_running)
    else:
        getattr(server, way)()
    assert not is_alive(child)


def test_only_its_own_processes_are_signalled(make):
    """Everybody else's survives every control."""
    with subprocess.Popen(["sleep", "60"]) as stranger, make(name="other") as other:
        server = make().start()
        server.freeze()
        server.thaw()
        server.restart()
        server.kill()
        assert stranger.poll() is None
        assert _processes.look(stranger.pid).state != "T"
        assert says(other) == b"hello"
        stranger.kill()


def test_a_number_that_now_is_anothers_is_not_signalled():
    """The time a process began tells it from a later one with the same number."""
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as stranger:
        found = _processes.look(stranger.pid)
        gone = found._replace(began=found.began - 1)
        assert not _processes.send(gone, signal.SIGKILL)
        assert _processes.family(gone) == []
        assert _processes.end(gone)
        assert _processes.freeze(gone, 0.1)
        assert stranger.poll() is None
        assert _processes.send(found, signal.SIGKILL)


def test_a_server_that_a_stranger_reaped_is_left_alone(make):
    """After that its number may be anybody's."""
    server = make().start()
    pid = server.pid
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    server.stop()
    server.kill()
    assert not server.is_running
    server.start()
    assert says(server) == b"hello"


def test_a_fork_of_the_test_process_does_not_end_its_servers(make):
    """They are the parent's: a fork neither sees them run nor ends them."""
    server = make().start()
    pid = os.fork()
    if pid == 0:
        try:
            server.stop()
            server.kill()
            os._exit(server.is_running)
        finally:
            os._exit(9)
    assert os.waitpid(pid, 0)[1] == 0
    assert says(server) == b"hello"


def test_a_server_outlives_the_thread_that_started_it(make):
    """The kernel's death signal would follow the thread."""
    server = make()
    thread = threading.Thread(target=server.start)
    thread.start()
    thread.join()
    assert says(server) == b"hello"


def test_another_thread_may_kill_what_is_starting(make):
    """Start then tells of the early end, and nothing hangs."""
    server = make(ready=lambda server: server.kill())
    with pytest.raises(ServerError, match="exit code -9"):
        server.start()


STARTER = """
import sys, pathlib, time
from doorbuster.testing.servers import Server, listening
def ready(server):
    if not (server.folder / "ticks").exists():
        return False
    print(server.pid, flush=True)
    if {early}:
        time.sleep(60)  # a child process, ended by the test long before
    return True
command = [sys.executable, "-I", "-S", "-c", sys.argv[1], "{{port}}"]
server = Server(command, name="x", folder=pathlib.Path(sys.argv[2]), ready=ready).start()
{then}
"""


# who sleeps here is a child that is killed, or a fork that outlives one which was
@pytest.mark.parametrize(
    ("early", "then", "number"),
    [
        (True, "", signal.SIGKILL),
        (False, "server.freeze(); print('done', flush=True); time.sleep(60)", signal.SIGKILL),
        (
            False,
            "import os; os.fork() and print('done', flush=True); time.sleep(3)",
            signal.SIGKILL,
        ),
        (False, "import os; os._exit(0)", 0),
    ],
    ids=["killed while it starts one", "killed with a frozen one", "killed, not its fork", "ends"],
)
def test_nothing_outlives_the_process_that_started_it(tmp_path, early, then, number):
    """``kill -9`` of a test run leaves no server and no child of one."""
    script = STARTER.format(early=early, then=then)
    command = [sys.executable, "-c", script, WITH_CHILD, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as starter:
        pid = int(starter.stdout.readline())
        family = [] if number == 0 else _processes.family(_processes.look(pid))
        if "done" in then:
            assert starter.stdout.readline() == "done\n"
        if number:
            starter.send_signal(number)
    assert len(family) == (2 if number else 0)
    gone = wait_for(lambda: not any(is_alive(n) for n in (pid, *(one.pid for one in family))), 2.0)
    assert gone


def test_a_process_that_dies_before_the_gate_opens_starts_no_server(tmp_path):
    """The watcher knows a server before its program runs, so there is no moment in between."""
    script = """
import os, sys, pathlib
from doorbuster.testing import _spawn
with open("log", "wb") as log:
    process, leader = _spawn.spawn(["touch", "ran"], folder=".", log=log, env=os.environ)
print(process.pid, flush=True)
os._exit(0)
"""
    command = [sys.executable, "-c", script]
    pid = int(subprocess.check_output(command, text=True, cwd=tmp_path))
    assert wait_for(lambda: not is_alive(pid))
    assert not (tmp_path / "ran").exists()


def test_a_watcher_that_was_ended_is_replaced(tmp_path):
    """The next one knows the servers that run already."""
    script = """
import os, signal, sys, pathlib, time
from doorbuster.testing import _processes
from doorbuster.testing.servers import Server, listening
def server(name):
    command = [sys.executable, "-I", "-S", "-c", sys.argv[1], "{port}"]
    return Server(command, name=name, folder=pathlib.Path(sys.argv[2]) / name, ready=listening())
first = server("first").start()
mine = [one for name in os.listdir("/proc") if name.isdigit()
        and (one := _processes.look(int(name))) and one.parent == os.getpid()]
(watcher,) = [one for one in mine if one.pid != first.pid]
os.kill(watcher.pid, signal.SIGKILL)
os.waitpid(watcher.pid, 0)
second = server("second").start()
print(first.pid, second.pid, flush=True)
time.sleep(60)  # a child process, ended by the test long before
"""
    command = [sys.executable, "-c", script, ECHO, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as starter:
        pids = [int(word) for word in starter.stdout.readline().split()]
        assert len(pids) == 2
        assert all(map(is_alive, pids))
        starter.kill()
    assert wait_for(lambda: not any(map(is_alive, pids)))


def test_servers_leak_no_descriptors(make):
    """Ten starts and stops, one count."""
    server = make().start()  # the watcher's pipe is there once for all
    server.stop()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        server.start()
        server.kill()
    assert len(os.listdir("/proc/self/fd")) == before


# need and required


def test_need_finds_programs_and_modules():
    """The path of a program, the name of a module."""
    assert Path(need("sh")).is_file()
    assert need("msgspec") == "msgspec"


def test_need_skips_locally_and_fails_where_ci_promises_the_program():
    """Only ``CI=true`` is a promise."""
    for env in ({}, {"CI": "1"}, {"CI": "false"}):
        with pytest.raises(pytest.skip.Exception, match="no-such-server is neither"):
            need("no-such-server", env)
    with pytest.raises(pytest.fail.Exception, match="CI=true promises it"):
        need("no-such-server", {"CI": "true"})


def test_required_skips_when_absent_and_never_when_present(monkeypatch):
    """A variable that is set must run; a blank one cannot, and says so."""
    name = "DOORBUSTER_TEST_REDIS_URL"
    monkeypatch.delenv(name, raising=False)
    with pytest.raises(pytest.skip.Exception, match=name):
        required(name)
    with pytest.raises(pytest.skip.Exception, match=name):
        required(name, {"CI": "true"})
    monkeypatch.setenv(name, "redis://127.0.0.1:1")
    assert required(name) == "redis://127.0.0.1:1"
    with pytest.raises(pytest.fail.Exception, match="blank"):
        required(name, {name: " "})
