"""A worker without PyTorch: speaks the messages of `python -m model_garden.worker` and learns nothing.

A test writes it into a program of its own, with what is to go wrong in PLAN: `missing` packages, `hang_at_start`,
`fail_at_start` with words, `die_at_step`, `nan_at_step`, `full_at_step`. Requests are kept beside the program, a line each.
"""

import json
import os
import signal
import socket
import sys

PLAN = json.loads(os.environ.get("FAKE_WORKER_PLAN", "{}"))
HERE = os.path.dirname(os.path.abspath(__file__))
SIZES = {"int64": 8, "float32": 4}


def check(names):
    """What the interpreter's packages are said to be."""
    missing = PLAN.get("missing", [])
    found = {name: None if name in missing else PLAN.get("version", "1") for name in names}
    print(json.dumps({"found": found, "broken": None, "cuda": False}))


def content(path):
    with open(path, "rb") as file:
        return file.read()


class Worker:
    def __init__(self, settings):
        # As the real one does: the folder of the settings is gone once it has answered.
        names = ("adapter_config.json", "adapter_model.safetensors")
        self.adapter = {name: content(os.path.join(settings["adapter"], name)) for name in names}
        self.socket = socket.socket(fileno=0)
        self.reader = self.socket.makefile("rb")
        self.steps = 0

    def say(self, **message):
        self.socket.sendall(json.dumps(message).encode() + b"\n")

    def request(self):
        line = self.reader.readline()
        if not line:
            sys.exit(0)
        request = json.loads(line)
        for batch in request.get("batches", ()):
            for array in batch["arrays"]:
                size = SIZES[array["kind"]]
                for side in array["shape"]:
                    size *= side
                assert len(self.reader.read(size)) == size
        with open(os.path.join(HERE, "requests.jsonl"), "a") as kept:
            kept.write(line.decode())
        return request

    def run(self):
        print("a library greets")
        if PLAN.get("hang_at_start"):
            return self.socket.recv(1)
        if "fail_at_start" in PLAN:
            return self.say(failed=PLAN["fail_at_start"])
        self.say(note="this worker is a fake")
        self.say(answer={"parameters": 1000, "trained_parameters": 10})
        while True:
            request = self.request()
            self.say(answer=getattr(self, request["do"])(request) or {})

    def begin(self, request):
        if request["checkpoint"]:
            with open(os.path.join(request["checkpoint"], "optimizer.pt")) as state:
                self.steps = int(state.read())

    def step(self, request):
        self.steps += 1
        if self.steps == PLAN.get("die_at_step"):
            print("it hurts", file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        loss = None if self.steps == PLAN.get("nan_at_step") else 1 / self.steps
        return {"loss": loss, "gradient_norm": 0.5, "memory": {"live": 7, "peak": 9, "buffers": 0}}

    def evaluate(self, request):
        return {"loss": 10 / (self.steps + 1), "correct": 1}

    def check(self, request):
        return {"tensor": None}

    def save(self, request):
        if self.steps == PLAN.get("full_at_step"):
            self.say(full="OSError: no space left")
            sys.exit(1)
        for name, written in self.adapter.items():
            with open(os.path.join(request["folder"], name), "wb") as file:
                file.write(written)
        with open(os.path.join(request["folder"], "optimizer.pt"), "w") as state:
            state.write(str(self.steps))


if sys.argv[1] == "-c":
    check(sys.argv[3:])
else:
    assert sys.argv[1:3] == ["-m", "model_garden.worker"]
    with open(sys.argv[3]) as settings:
        Worker(json.load(settings)).run()
