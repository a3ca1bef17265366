"""The messages between `model-garden` and its worker.

A request is a line of JSON, followed by the bytes of the arrays that it names. An answer is a line of JSON. Both travel over the socket
that `model-garden` gives the worker as its standard input, so whatever a library prints goes elsewhere.
"""

from __future__ import annotations

import json
import math
import os
import select
import socket
import threading
from typing import Any

import numpy as np


class Gone(Exception):
    """`model-garden` is no longer there."""


def finite(value: float) -> float | None:
    """A number as JSON has it: one that is not finite is null."""
    return value if math.isfinite(value) else None


class Channel:
    """One end of the socket."""

    def __init__(self, connection: socket.socket):
        self.connection = connection
        self.reader = connection.makefile("rb", buffering=1 << 20)

    @classmethod
    def on_standard_input(cls) -> Channel:
        """Takes over the socket that is standard input, and ends this process when the other end is closed."""
        connection = socket.socket(fileno=os.dup(0))
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        threading.Thread(target=end_when_closed, args=(connection.fileno(),), daemon=True).start()
        return cls(connection)

    def request(self) -> dict[str, Any]:
        """Waits for a request. Its batches hold their arrays by name."""
        line = self.reader.readline()
        if not line.endswith(b"\n"):
            raise Gone
        request = json.loads(line)
        for batch in request.get("batches", ()):
            batch["arrays"] = {array["name"]: self.array(array) for array in batch["arrays"]}
        return request

    def array(self, header: dict[str, Any]) -> np.ndarray:
        kind, shape = np.dtype(header["kind"]), header["shape"]
        values = np.empty(shape, kind)
        left = memoryview(values.reshape(-1).view(np.uint8))
        while left:
            count = self.reader.readinto(left)
            if not count:
                raise Gone
            left = left[count:]
        return values

    def answer(self, **values: Any) -> None:
        self.say({"answer": values})

    def note(self, text: str) -> None:
        """Something that the user should know."""
        self.say({"note": text})

    def failed(self, text: str) -> None:
        """Why the worker cannot go on."""
        self.say({"failed": text})

    def full(self, text: str) -> None:
        """There is no space left for a checkpoint."""
        self.say({"full": text})

    def say(self, message: dict[str, Any]) -> None:
        try:
            self.connection.sendall(json.dumps(message, allow_nan=False).encode() + b"\n")
        except OSError as error:
            raise Gone from error


def end_when_closed(descriptor: int) -> None:
    """A step may take minutes: a worker that nobody waits for ends at once."""
    poll = select.poll()
    poll.register(descriptor, select.POLLRDHUP | select.POLLHUP | select.POLLERR)
    poll.poll()
    os._exit(1)
