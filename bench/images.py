"""Milliseconds an image takes from JPEG bytes on: ours beside HF's Qwen2-VL processor, on the same photos in one run.

    python bench/images.py [--rounds 5]      (a Python with peers/requirements.txt; builds our side itself)

Ours is measured to the f32 `pixel_values` that HF gives as well, and to the compact patches (a byte a sample, each frame
once) that our trainer takes instead. HF is measured as its users run it, one process with torch on all cores, and at its
best: as many processes as cores, one thread each; of its two processors (torchvision's and Pillow's) the faster counts.
All take turns, round by round, with warm buffers, and medians are compared. Decoding alone is our own decoder on all cores, and
Pillow's (libjpeg-turbo) with a process a core; the last column says how much longer the whole way takes, ours to patches.
"""

import argparse, io, json, multiprocessing, os, statistics, subprocess, sys, tempfile, time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CHECKPOINT = ROOT / "crates/data/tests/goldens/checkpoint"
LIMITS = {"min_pixels": 256 * 28 * 28, "max_pixels": 1280 * 28 * 28}
SIZES = ((640, 480), (1280, 960), (3000, 2048))
CORES = os.cpu_count()
PHOTOS = 4


def photo(rng, width, height):
    import numpy as np
    from PIL import Image

    small = rng.integers(0, 255, (height // 16, width // 16, 3), dtype=np.uint8)
    out = io.BytesIO()
    Image.fromarray(small).resize((width, height), Image.BICUBIC).save(out, "JPEG", quality=90)
    return out.getvalue()


def hf_worker(threads, requests, answers):
    import torch, transformers
    from PIL import Image

    torch.set_num_threads(threads)
    decode = lambda data: Image.open(io.BytesIO(data)).convert("RGB")
    processors = [transformers.Qwen2VLImageProcessor(**LIMITS), transformers.Qwen2VLImageProcessorPil(**LIMITS)]
    values = [lambda data, p=processor: p(images=[decode(data)], return_tensors="pt") for processor in processors]
    for photos, passes in iter(requests.get, None):
        for work in (*values, decode):
            work(photos[0])
            answers.put("ready")
            requests.get()
            for _ in range(passes):
                for data in photos:
                    work(data)
            answers.put("done")


class Hf:
    """`processes` workers of `threads` threads."""

    def __init__(self, processes, threads):
        context = multiprocessing.get_context("spawn")
        self.pipes = [(context.Queue(), context.Queue()) for _ in range(processes)]
        self.workers = [context.Process(target=hf_worker, args=(threads, *pipe), daemon=True) for pipe in self.pipes]
        for worker in self.workers:
            worker.start()

    def time(self, photos, passes):
        """Milliseconds an image, all workers together: to values by torchvision and by Pillow, and decoded only."""
        for requests, _ in self.pipes:
            requests.put((photos, passes))
        times = []
        for _ in range(3):
            for _, answers in self.pipes:
                answers.get()
            start = time.perf_counter()
            for requests, _ in self.pipes:
                requests.put("go")
            for _, answers in self.pipes:
                answers.get()
            times.append((time.perf_counter() - start) * 1e3 / passes / len(photos) / len(self.pipes))
        return times

    def stop(self):
        for requests, _ in self.pipes:
            requests.put(None)
        for worker in self.workers:
            worker.join()


class Ours:
    def __init__(self):
        build = ["cargo", "build", "--release", "--package", "garden-data", "--example", "images", "--message-format=json"]
        lines = subprocess.run(build, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
        built = [json.loads(line) for line in lines]
        binary = [item["executable"] for item in built if item.get("executable")][-1]
        command = [binary, str(CHECKPOINT), str(LIMITS["min_pixels"]), str(LIMITS["max_pixels"])]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def time(self, files, passes):
        request = {"time": files, "rounds": passes, "threads": CORES}
        print(json.dumps(request), file=self.process.stdin, flush=True)
        answer = json.loads(self.process.stdout.readline())
        return answer["values"], answer["patches"], answer["decode"]


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--rounds", type=int, default=5, help="measurements of each; the median counts")
    arguments.add_argument("--keep", metavar="FOLDER", help="leave the photos there")
    options = arguments.parse_args()
    rounds = options.rounds
    import numpy as np

    rng = np.random.default_rng(0)
    ours, threaded, spread = Ours(), Hf(1, CORES), Hf(CORES, 1)
    for hf in (threaded, spread):  # until both have loaded torch, they take the cores from whoever is measured
        hf.time([photo(np.random.default_rng(1), 64, 64)], 1)
    print(f"ms an image on {CORES} cores, medians of {rounds} rounds taken in turn; in brackets: HF / ours")
    print("size      | ours: f32, patches | HF, one process        | HF, a process a core   | decode alone: ours, HF | over decode: ours, HF")
    with tempfile.TemporaryDirectory() as folder:
        if options.keep:
            folder = options.keep
            os.makedirs(folder, exist_ok=True)
        for width, height in SIZES:
            photos = [photo(rng, width, height) for _ in range(PHOTOS)]
            files = [str(Path(folder, f"{width}-{index}.jpg")) for index in range(PHOTOS)]
            for file, data in zip(files, photos):
                Path(file).write_bytes(data)
            passes = max(1, 4_000_000 // (width * height))
            sides = (lambda: ours.time(files, 4 * passes), lambda: threaded.time(photos, passes), lambda: spread.time(photos, passes))
            taken = [[] for _ in sides]
            for _ in range(rounds):
                for side, times in zip(sides, taken):
                    times.append(side())
            (values, patches, decode), one, many = ([statistics.median(t) for t in zip(*times)] for times in taken)
            of_hf = [min(times[:2]) for times in (one, many)]
            columns = (f"{hf:5.1f} ({hf / values:.1f}x, {hf / patches:.1f}x)" for hf in of_hf)
            print(
                f"{width}x{height:<{8 - len(str(width))}} | {values:9.2f} {patches:8.2f} |",
                *(f"{column:22} |" for column in columns),
                f"{decode:11.2f}, {many[2]:9.2f} | {patches / decode:.2f}, {of_hf[1] / many[2]:.2f}",
                flush=True,
            )
    threaded.stop()
    spread.stop()
    ours.process.stdin.close()


if __name__ == "__main__":
    sys.exit(main())
