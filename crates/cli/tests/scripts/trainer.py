"""A trainer as it should be: says its steps on the socket, hears of the limit, writes a checkpoint, asks to go on.

Arguments: the checkpoint's path, and `--resume` to start from it. Resumed, it does not grow and ends well.
"""
import json
import os
import signal
import socket
import sys
import tempfile
import time

checkpoint, resumes = sys.argv[1], "--resume" in sys.argv
line = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
line.bind(os.path.join(tempfile.mkdtemp(), "trainer"))
line.connect(os.environ["MODEL_GARDEN_SOCKET"])
told = []
signal.signal(signal.SIGTERM, lambda *_: told.append("signal"))
line.send(json.dumps({"event": "start", "dataset_size": 1000, "samples_per_step": 2}).encode())
line.send(b"this is no message")

step = int(open(checkpoint).read()) if resumes else 0
print(f"starts at {step}")
kept = []
while not told:
    step += 1
    if not resumes:
        kept.append(bytearray(b"\x01") * 1_000_000)
    elif step % 20 == 0:
        print("done")
        sys.exit(0)
    line.send(json.dumps({"step": step, "epoch": step / 500}).encode())
    time.sleep(0.02)
notice = json.loads(line.recv(4096))
print("heard", notice["event"], notice["action"], notice["limit"], sorted(notice))
with open(checkpoint, "w") as file:
    file.write(str(step))
sys.exit(75)
