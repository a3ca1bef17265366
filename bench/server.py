"""The listing of 1,000 jobs while 200 clients hold a stream open, on our server and on an in-process peer.

    bench/server.py [--jobs 1000] [--streams 200] [--requests 400] [--binary target/release/model-garden]

Needs the packages of server/requirements.txt (.venv-server has them). Both servers have the same jobs, whose objects have
the same fields. The streams are those of a job that waits: they say what it is and then stay open. Every page of the listing
is read as the SDK reads it: 100 jobs a page. The peer is a FastAPI application under uvicorn that keeps jobs in memory and answers
from the process that would train, as the founding project's server did. Prints quantiles of a page's time, and each
server's resident memory before the streams, with them, after half of the requests and after all.
"""

import argparse
import asyncio
import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

PEER = '''
import asyncio, json, sys
import uvicorn
from fastapi import FastAPI
from fastapi.responses import StreamingResponse

app = FastAPI()
jobs = json.load(open(sys.argv[1]))
jobs.sort(key=lambda job: (job["created_at"], job["id"]), reverse=True)
place = {job["id"]: number for number, job in enumerate(jobs)}

@app.get("/v1/fine_tuning/jobs")
async def listing(limit: int = 20, after: str | None = None):
    begin = place[after] + 1 if after else 0
    page = jobs[begin:begin + limit]
    return {"object": "list", "data": page, "has_more": begin + limit < len(jobs),
            "first_id": page[0]["id"] if page else None, "last_id": page[-1]["id"] if page else None}

@app.get("/v1/fine_tuning/jobs/{id}/stream")
async def stream(id: str):
    async def events():
        yield f"event: state\\\\ndata: {json.dumps(jobs[place[id]])}\\\\n\\\\n"
        while True:
            await asyncio.sleep(15)
            yield ": \\\\n\\\\n"
    return StreamingResponse(events(), media_type="text/event-stream")

uvicorn.run(app, port=int(sys.argv[2]), log_level="warning", access_log=False)
'''.replace("\\\\n", "\\n")


def resident(pid):
    """Resident bytes of a process."""
    return int(re.search(r"VmRSS:\s+(\d+)", pathlib.Path(f"/proc/{pid}/status").read_text())[1]) * 1024


async def hold_stream(host, port, path, held):
    """Reads a stream until it is cancelled."""
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nAccept: text/event-stream\r\n\r\n".encode())
    status = await reader.readline()
    assert b" 200 " in status, status
    held.append(writer)
    try:
        while await reader.read(65536):
            pass
    finally:
        held.remove(writer)
        writer.close()


def hold_streams(url, path, count):
    """Opens streams in a thread of their own and waits until all are open; gives a way to end them."""
    host, port = url.removeprefix("http://").split(":")
    held, loop = [], asyncio.new_event_loop()

    async def all_of_them():
        await asyncio.gather(*(hold_stream(host, int(port), path, held) for _ in range(count)), return_exceptions=True)

    task = loop.create_task(all_of_them())
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    deadline = time.monotonic() + 60
    while len(held) < count:
        assert time.monotonic() < deadline, f"only {len(held)} of {count} streams opened"
        time.sleep(0.05)

    def end():
        assert len(held) == count, f"{count - len(held)} of {count} streams ended early"
        loop.call_soon_threadsafe(task.cancel)

    return end


def pages(url, requests):
    """Reads the listing page by page, over and over; gives the seconds of each page."""
    import http.client

    host, port = url.removeprefix("http://").split(":")
    connection = http.client.HTTPConnection(host, int(port))
    seconds, after, seen = [], None, 0
    for _ in range(requests):
        path = "/v1/fine_tuning/jobs?limit=100" + (f"&after={after}" if after else "")
        begun = time.perf_counter()
        connection.request("GET", path)
        response = connection.getresponse()
        body = response.read()
        seconds.append(time.perf_counter() - begun)
        assert response.status == 200, body[:300]
        page = json.loads(body)
        seen += len(page["data"])
        after = page["data"][-1]["id"] if page["has_more"] else None
    return seconds, seen


def measure(name, url, pid, stream_of, streams, requests):
    pages(url, 20)
    before = resident(pid)
    end = hold_streams(url, f"/v1/fine_tuning/jobs/{stream_of}/stream", streams)
    with_streams = resident(pid)
    seconds, seen = pages(url, requests // 2)
    halfway = resident(pid)
    more, further = pages(url, requests - requests // 2)
    after = resident(pid)
    seconds, seen = seconds + more, seen + further
    end()
    quantiles = statistics.quantiles(seconds, n=100)
    print(
        f"{name:<28} p50 {quantiles[49] * 1e3:7.1f} ms   p99 {quantiles[98] * 1e3:7.1f} ms   "
        f"{seen / sum(seconds):9.0f} jobs/s   RSS {before / 1e6:6.1f} -> {with_streams / 1e6:6.1f} -> "
        f"{halfway / 1e6:6.1f} -> {after / 1e6:6.1f} MB"
    )
    return quantiles[98]


def wait_for(log, process):
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if found := re.search(r"serving at (http://\S+)", log.read_text()):
            return found[1]
        assert process.poll() is None, log.read_text()
        time.sleep(0.05)
    raise SystemExit("the server did not start")


def get(url):
    return json.load(urllib.request.urlopen(url))


def post(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    return json.load(urllib.request.urlopen(request))


def one_job(binary, folder, url):
    """Trains a job of a few steps, so that a real one can be copied."""
    subprocess.run([binary, "dataset", "create", "--kind", "shapes", "--rows", "24", "--size", "56x56", "--output", folder / "shapes"], check=True, stdout=subprocess.DEVNULL)
    subprocess.run([binary, "dataset", "convert", folder / "shapes", folder / "rows.jsonl"], check=True, stdout=subprocess.DEVNULL)
    rows = (folder / "rows.jsonl").read_bytes()
    edge = "bench-edge"
    form = (
        f'--{edge}\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nfine-tune\r\n'
        f'--{edge}\r\ncontent-disposition: form-data; name="file"; filename="rows.jsonl"\r\n\r\n'
    ).encode() + rows + f"\r\n--{edge}--\r\n".encode()
    request = urllib.request.Request(f"{url}/v1/files", form, {"content-type": f"multipart/form-data; boundary={edge}"})
    file = json.load(urllib.request.urlopen(request))
    job = post(f"{url}/v1/fine_tuning/jobs", {"model": "tiny", "training_file": file["id"], "max_steps": 20, "logging_steps": 1})
    while not (job := get(f"{url}/v1/fine_tuning/jobs/{job['id']}"))["finished_at"]:
        time.sleep(0.1)
    assert job["status"] == "succeeded", job["error"]
    return job


def copies(data, job, count):
    """Copies a job's folder under other ids: the index is made anew from the folders."""
    source = data / "jobs" / job["id"]
    letters = "abcdefghijkmnpqrstuvwxyz"
    for number in range(count - 2):
        id = "ftjob-" + "".join(letters[(number // 24**place) % 24] for place in range(24))
        target = data / "jobs" / id
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("output"))
        record = json.loads((target / "job.json").read_text())
        record.update(id=id, created_at=record["created_at"] - number)
        (target / "job.json").write_text(json.dumps(record))
    for name in ("garden.sqlite", "garden.sqlite-wal", "garden.sqlite-shm"):
        (data / name).unlink(missing_ok=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--requests", type=int, default=400)
    parser.add_argument("--binary", default="target/release/model-garden")
    options = parser.parse_args()
    binary = pathlib.Path(options.binary).absolute()
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        subprocess.run([binary, "init", "--preset", "tiny", "--output", folder / "models/tiny"], check=True, stdout=subprocess.DEVNULL)
        log = folder / "log"

        def serve():
            command = [binary, "serve", "--port", "0", "--data-dir", folder / "data", "--models-dir", folder / "models", "--rate-limit", "0"]
            process = subprocess.Popen([str(word) for word in command], stderr=open(log, "w"))
            return process, wait_for(log, process)

        process, url = serve()
        job = one_job(binary, folder, url)
        process.terminate()
        process.wait()
        copies(folder / "data", job, options.jobs)
        process, url = serve()
        try:
            waiting = post(f"{url}/v1/fine_tuning/jobs", {"model": "tiny", "training_file": job["training_file"], "max_steps": 100_000})
            post(f"{url}/v1/fine_tuning/jobs/{waiting['id']}/pause", {})
            while get(f"{url}/v1/fine_tuning/jobs/{waiting['id']}")["garden"]["state"] != "paused":
                time.sleep(0.1)
            jobs, after = [], ""
            while True:
                page = get(f"{url}/v1/fine_tuning/jobs?limit=100{after}")
                jobs += page["data"]
                if not page["has_more"]:
                    break
                after = f"&after={page['last_id']}"
            assert len(jobs) == options.jobs, len(jobs)
            print(f"{len(jobs)} jobs of {len(json.dumps(jobs)) // len(jobs)} bytes each, {options.streams} streams, pages of 100")
            ours = measure("model-garden serve", url, process.pid, waiting["id"], options.streams, options.requests)
        finally:
            process.terminate()
            process.wait()
        (folder / "jobs.json").write_text(json.dumps(jobs))
        (folder / "peer.py").write_text(PEER)
        import socket

        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        peer = subprocess.Popen([sys.executable, folder / "peer.py", folder / "jobs.json", str(port)])
        try:
            url = f"http://127.0.0.1:{port}"
            for _ in range(200):
                try:
                    get(f"{url}/v1/fine_tuning/jobs?limit=1")
                    break
                except OSError:
                    time.sleep(0.1)
            theirs = measure("FastAPI, jobs in memory", url, peer.pid, waiting["id"], options.streams, options.requests)
        finally:
            peer.terminate()
            peer.wait()
        print(f"p99 of ours / theirs: {ours / theirs:.2f}")


if __name__ == "__main__":
    sys.exit(main())
