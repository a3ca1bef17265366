"""Answers the supervisor's questions from inside a Python process.

A thread waits on a socket and costs nothing while it waits. It leaves before a fork and comes back after it, in both processes, so that a
program never forks with a thread that it does not know. It heeds no signal and keeps no interpreter from ending.
"""

import _signal
import _socket
import _thread
import fcntl
import os
import sys
import time

# File descriptors of the program stay as they would be without us.
HIGH = (900, 200, 60)
# A census ends by itself long before this, in seconds.
PATIENCE = 60.0
# Signals of an error in the thread itself.
FAULTS = {_signal.SIGSEGV, _signal.SIGBUS, _signal.SIGFPE, _signal.SIGILL}


class Listener:
    def __init__(self, address):
        self.address = address
        self.mark = None
        self.step = None
        self.sock = None
        self.ended = None
        self.thread = 0
        self.later = None
        self.fork = None

    def begin(self):
        self.sock = None
        try:
            sock = raised(self.connected())
            self.ended = _thread.allocate_lock()
            self.ended.acquire()
            self.sock = sock
            _thread.start_new_thread(self.serve, (sock, self.ended))
        except Exception:
            self.sock = None

    def connected(self):
        sock = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        sock.connect(self.address)
        return sock

    def come_back(self):
        """After a fork, in the parent. Python 3.13 counts threads once this has returned, and would warn of ours: it begins later."""
        if sys.version_info < (3, 13):
            self.begin()
        elif self.later is not None:
            # The caller of this is the program's frame, at the fork.
            frame = sys._getframe(1)
            self.fork = (frame, frame.f_lasti)
            self.later[1](self.later[0], None)

    def prepare(self):
        """A call that the interpreter makes as soon as it runs Python code again."""
        if self.later is None and sys.version_info >= (3, 13):
            import ctypes

            kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
            self.later = (kind(self.begin_later), ctypes.pythonapi.Py_AddPendingCall)

    def begin_later(self, _):
        frame = sys._getframe()
        while frame is not None and frame is not self.fork[0]:
            frame = frame.f_back
        if frame is not None and frame.f_lasti == self.fork[1]:
            # The fork has not returned yet.
            self.later[1](self.later[0], None)
        else:
            self.fork = None
            self.begin()
        return 0

    def leave(self):
        """Before a fork: the thread ends, and the system no longer counts it."""
        sock, self.sock = self.sock, None
        if sock is None:
            return
        try:
            self.prepare()
        except Exception:
            self.later = None
        try:
            sock.shutdown(_socket.SHUT_RDWR)
        except Exception:
            pass
        if not self.ended.acquire(True, PATIENCE):
            return
        task = "/proc/self/task/%d" % self.thread
        until = time.monotonic() + 0.1
        while self.thread and os.path.exists(task) and time.monotonic() < until:
            time.sleep(0.0001)

    def serve(self, sock, ended):
        try:
            _signal.pthread_sigmask(_signal.SIG_BLOCK, set(range(1, _signal.NSIG)) - FAULTS - RESERVED)
            self.thread = _thread.get_native_id()
            ours = os.fstat(sock.fileno()).st_ino
            hello = '{"pid": %d, "python": "%d.%d.%d"}\n' % ((os.getpid(),) + sys.version_info[:3])
            sock.sendall(hello.encode())
            pending = b""
            # A program may close all descriptors and open its own under the same number.
            while os.fstat(sock.fileno()).st_ino == ours:
                data = sock.recv(4096)
                if not data:
                    break
                pending += data
                while b"\n" in pending:
                    line, _, pending = pending.partition(b"\n")
                    sock.sendall(self.answer(line))
        except BaseException:
            pass
        finally:
            try:
                sock.close()
            except BaseException:
                pass
            ended.release()

    def answer(self, line):
        import json

        begun = time.thread_time()
        try:
            reply = self.reply(json.loads(line))
        except Exception as error:
            reply = {"error": "%s: %s" % (type(error).__name__, error)}
        reply["seconds"] = time.thread_time() - begun
        # Names that are no text, such as those of files in another encoding, become question marks.
        return json.dumps(reply, ensure_ascii=False).encode("utf-8", "replace") + b"\n"

    def reply(self, question):
        from . import _explain, _pause, _words

        _pause.OURS.add(__name__)
        if question["ask"] == "mark":
            self.mark = None
            self.mark = _explain.Mark(self.step_at)
            told = {"owned": self.mark.owned, "objects": self.mark.census.objects, "complete": self.mark.census.complete}
        elif self.mark is None:
            return {"error": "there was no first census"}
        else:
            told = _explain.explain(self.mark, self.step_at)
            told["lines"] = _words.sentences(told)
            told["owned"] = self.mark.owned + told["growth"]
        told["step"] = self.step
        return told

    def step_at(self, moment):
        """Asks back which step a moment belonged to: the program's output tells it, not the program."""
        import json

        self.sock.sendall(b'{"step_at": %r}\n' % moment)
        data = b""
        while not data.endswith(b"\n"):
            part = self.sock.recv(256)
            if not part:
                raise EOFError("nobody listens any more")
            data += part
        self.step = json.loads(data)["step"]
        return self.step


# The C library keeps these to itself.
RESERVED = {32, 33}


def raised(sock):
    """The same socket under a high number."""
    for least in HIGH:
        try:
            number = fcntl.fcntl(sock.fileno(), fcntl.F_DUPFD_CLOEXEC, least)
        except OSError:
            continue
        sock.close()
        return _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM, 0, number)
    return sock


def listen(address):
    listener = Listener(address)
    os.register_at_fork(before=listener.leave, after_in_parent=listener.come_back, after_in_child=listener.begin)
    listener.begin()
