"""Runs a command as a supervisor that is short of memory: whatever it reports, the answer is that its limit is near.

    short_of_memory.py STARTS COMMAND ...

The file STARTS counts how often this was started; from the third time on there is memory enough.
"""
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading

starts, command = sys.argv[1], sys.argv[2:]
with open(starts, "a+") as file:
    file.write(".")
    file.seek(0)
    started = len(file.read())
NOTICE = {"event": "memory-limit", "action": "checkpoint", "reason": "using 9.6 MB of 10 MB"}


def answer(listener):
    while True:
        _, sender = listener.recvfrom(65536)
        if started <= 2:
            listener.sendto(json.dumps(NOTICE).encode(), sender)


with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
    listener.bind(os.path.join(folder, "steps"))
    child = subprocess.Popen(command, env={**os.environ, "MODEL_GARDEN_SOCKET": listener.getsockname()})
    threading.Thread(target=answer, args=[listener], daemon=True).start()
    code = child.wait()
os._exit(code)
