"""A command with children that hide: a double fork, a session of its own, signals ignored. Prints their PIDs.

Then, by argument: `wait` waits, `grow` grows without end, `leave` ends and leaves the others behind.
"""
import os
import signal
import sys
import time


def say(name):
    os.write(1, f"{name} {os.getpid()}\n".encode())


def hide():
    """A grandchild that nobody can reach by parent, group or session, and that ignores requests to end."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            for name in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                signal.signal(name, signal.SIG_IGN)
            say("pid")
            time.sleep(600)
        os._exit(0)
    os.wait()


def stay():
    if os.fork() == 0:
        say("pid")
        time.sleep(600)
        os._exit(0)


say("pid")
hide()
stay()
time.sleep(0.2)
print("ready", flush=True)
if sys.argv[1] == "wait":
    time.sleep(600)
elif sys.argv[1] == "grow":
    kept = []
    while True:
        kept.append(bytearray(b"\x01") * 1_000_000)
        time.sleep(0.002)
