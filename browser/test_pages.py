"""Opens the pages that `model-garden` writes in headless Chromium, and looks at what a reader would see.

SCREENSHOTS=DIR keeps the screenshots, for a person to look at.
"""

import html
import json
import os
import pathlib
import re
import struct
import subprocess
import tempfile
import unittest
import zlib

ROOT = pathlib.Path(__file__).resolve().parent.parent
GARDEN = ROOT / "target" / "debug" / "model-garden"
LOGS = ROOT / "crates" / "memory" / "tests" / "data"
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--hide-scrollbars",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    # The page must not need the network: whatever it asks for, nobody answers.
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--virtual-time-budget=10000",
]
DARK = "--blink-settings=preferredColorScheme=0"
WIDE, NARROW = 1100, 400

# Runs inside the page, after its own scripts, and tells what is on it.
PROBE = """
<script>
addEventListener('load', () => setTimeout(() => {
  const box = element => { const r = element.getBoundingClientRect(); return [r.left, r.top, r.right, r.bottom]; };
  const overlap = (a, b) => a[0] < b[2] && b[0] < a[2] && a[1] < b[3] && b[1] < a[3];
  const ink = canvas => {
    const {data} = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
    const colors = new Set();
    for (let at = 0; at < data.length; at += 4) if (data[at + 3] > 200) colors.add(data[at] << 16 | data[at + 1] << 8 | data[at + 2]);
    return colors.size;
  };
  const charts = [...document.querySelectorAll('figure[data-chart]')].map(figure => {
    const [canvas, plot, legend] = ['canvas', '.plot', '.legend'].map(name => figure.querySelector(name));
    const before = legend.textContent;
    plot.focus();
    for (const key of ['Home', 'ArrowRight']) plot.dispatchEvent(new KeyboardEvent('keydown', {key, bubbles: true}));
    const moved = figure.querySelector('.place').textContent;
    plot.dispatchEvent(new KeyboardEvent('keydown', {key: '+', bubbles: true}));
    const zoomed = !figure.querySelector('.controls button').hidden;
    plot.dispatchEvent(new KeyboardEvent('keydown', {key: 'Escape', bubbles: true}));
    const time = [...figure.querySelectorAll('button.axis')].find(button => button.textContent === 'Time');
    time?.click();
    const timed = figure.querySelector('.place').textContent;
    figure.querySelector('button.axis')?.click();
    return {
      title: figure.querySelector('h3').textContent, colors: ink(canvas), moved, zoomed, timed: time ? timed : null,
      whole: figure.querySelector('.controls button').hidden, focused: document.activeElement === plot,
      label: plot.getAttribute('aria-label'), legendOverPlot: overlap(box(legend), box(figure.querySelector('.u-over'))),
      lines: legend.querySelectorAll('button').length, told: before,
    };
  });
  document.activeElement.blur();
  const told = {
    charts, width: innerWidth, scroll: document.documentElement.scrollWidth,
    page: getComputedStyle(document.body).backgroundColor,
    requests: performance.getEntriesByType('resource').map(entry => entry.name),
    spoken: document.getElementById('spoken').textContent,
    unreachable: [...document.querySelectorAll('button, summary, a, .plot')].filter(one => one.tabIndex < 0).length,
  };
  const pre = document.createElement('pre');
  pre.id = 'told';
  pre.hidden = true;
  pre.textContent = JSON.stringify(told);
  document.body.append(pre);
  parent.postMessage(told, '*');
}, 300));
</script>
"""
# Chromium has no window narrower than 500 pixels; a frame has.
FRAME = """<!doctype html><body style="margin:0"><iframe src="{page}" width="{width}" height="{height}" style="border:0"></iframe>
<script>addEventListener('message', event => {{
  const pre = document.createElement('pre'); pre.id = 'told'; pre.hidden = true;
  pre.textContent = JSON.stringify(event.data); document.body.append(pre);
}});</script>"""


def chromium(page, *extra):
    """What the browser wrote, and what its console said."""
    with tempfile.TemporaryDirectory() as profile:
        command = [os.environ["CHROMIUM"], *FLAGS, f"--user-data-dir={profile}", "--enable-logging=stderr", *extra]
        done = subprocess.run([*command, page.as_uri()], capture_output=True, text=True, timeout=300)
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def pixels(path):
    """Width, height and the set of colours of a PNG with eight bits a channel."""
    data, at, packed = path.read_bytes(), 8, b""
    while at < len(data):
        length, kind = struct.unpack(">I4s", data[at : at + 8])
        body = data[at + 8 : at + 8 + length]
        if kind == b"IHDR":
            width, height, _, colour = struct.unpack(">IIBB", body[:10])
        packed += body if kind == b"IDAT" else b""
        at += 12 + length
    channels = {2: 3, 6: 4}[colour]
    raw, stride = zlib.decompress(packed), width * channels + 1
    return width, height, len({raw[row * stride + 1 : (row + 1) * stride] for row in range(height)})


class Pages(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        facts = ["--dataset-size", 663, "--samples-per-step", 8, "--limit", "24GB"]
        runs = map(cls.made_trace, range(8))
        cls.single, cls.compared = cls.folder / "single.html", cls.folder / "compared.html"
        cls.garden("memory", "analyze", LOGS / "founding-run2.log", *facts, "--html", cls.single)
        cls.garden("memory", "report", *runs, "--html", cls.compared)
        model, rows, output = (cls.folder / name for name in ("model", "rows", "out"))
        cls.garden("init", "--preset", "tiny", "--output", model)
        cls.garden("dataset", "create", "--kind", "shapes", "--rows", 16, "--size", "56x56", "--output", rows)
        names = ["--base-model", model, "--dataset", rows, "--output-dir", output, "--memory-limit", "2GB"]
        cls.garden("train-vision", *names, "--batch-size", 2, "--epochs", 4, "--logging-steps", 2, "--eval-split", 4)
        cls.trained = output / "report.html"

    @classmethod
    def made_trace(cls, number):
        """A run of 300 steps with shared memory and a start before its first step."""
        path = cls.folder / f"run-{number}.jsonl"
        lines = [json.dumps({"trace": "model-garden/1", "name": path.stem, "dataset_size": 600, "samples_per_step": 8})]
        for t in range(330):
            step = t - 30
            anon = int(4e9 * min(1, t / 30) + max(step, 0) * (number + 1) * 4e6 + (t * 7919 % 100) * 1e6)
            sample = {"t": t, "rss": anon + 900_000_000, "anon": anon, "file": 600_000_000, "shmem": 300_000_000, "swap": 0}
            lines.append(json.dumps(sample | ({"step": step, "epoch": step / 75} if step > 0 else {})))
        path.write_text("\n".join(lines) + "\n")
        return path

    @classmethod
    def garden(cls, *arguments):
        done = subprocess.run([GARDEN, *map(str, arguments)], capture_output=True, text=True)
        assert done.returncode != 2, done.stderr

    def look(self, page, width, *flags):
        """Opens a page at a width, and returns what the probe found."""
        probed = self.folder / f"probed-{page.stem}.html"
        probed.write_text(page.read_text().replace("</body>", PROBE + "</body>"))
        frame = self.folder / "frame.html"
        frame.write_text(FRAME.format(page=probed.as_uri(), width=width, height=900))
        document, console = chromium(frame, "--dump-dom", "--window-size=1300,900", *flags)
        self.assertEqual([line for line in console if "rror" in line or "efused" in line], [])
        found = re.search(r'<pre id="told"[^>]*>(.*?)</pre>', document, re.S)
        self.assertIsNotNone(found, f"the page's scripts did not finish: {console}")
        return json.loads(html.unescape(found[1]))

    def check(self, page, titles):
        """What holds for every page, at every width and in the dark."""
        backgrounds = set()
        for width, flags in [(WIDE, []), (NARROW, []), (WIDE, [DARK]), (NARROW, [DARK])]:
            with self.subTest(page=page.name, width=width, dark=bool(flags)):
                told = self.look(page, width, *flags)
                self.assertEqual(told["width"], width)
                self.assertLessEqual(told["scroll"], width, "the page is wider than its window")
                self.assertEqual(told["requests"], [])
                self.assertEqual(told["unreachable"], 0, "something cannot be reached by the keyboard")
                self.assertEqual([chart["title"] for chart in told["charts"]], titles)
                for chart in told["charts"]:
                    self.assertGreater(chart["colors"], 3, f"{chart['title']} is blank")
                    self.assertFalse(chart["legendOverPlot"], f"the legend of {chart['title']} covers its plot")
                    self.assertTrue(chart["focused"] and chart["zoomed"] and chart["whole"], chart)
                    self.assertIn("Arrow keys", chart["label"])
                    self.assertRegex(chart["moved"], r"at (step \d|\d+:\d)")
                self.assertRegex(told["spoken"], r"step \d")
                backgrounds.add(told["page"])
                self.screenshot(page, width, "dark" if flags else "light", *flags)
        self.assertEqual(len(backgrounds), 2, "light and dark look the same")
        return told

    def screenshot(self, page, width, tone, *flags):
        folder = pathlib.Path(os.environ.get("SCREENSHOTS", self.folder))
        picture = folder / f"{page.stem}-{width}-{tone}.png"
        height = 1500 if width == WIDE else 2400
        frame = self.folder / "picture.html"
        frame.write_text(FRAME.format(page=page.as_uri(), width=width, height=height))
        chromium(frame, f"--screenshot={picture}", f"--window-size={max(width, 500)},{height}", *flags)
        self.assertGreater(pixels(picture)[2], 100, "the screenshot is blank")

    def test_analyze_tells_the_verdict_and_draws_its_curve(self):
        told = self.check(self.single, ["Memory"])
        self.assertIn("memory of its own", told["charts"][0]["told"])
        words = self.single.read_text()
        order = [words.index(part) for part in ('class="lead"', "<figure", "What to do", "Evidence")]
        self.assertEqual(order, sorted(order), "verdict, curve, advice, evidence")

    def test_report_compares_runs_on_one_page(self):
        told = self.check(self.compared, ["Memory"] * 9)
        together = told["charts"][0]
        self.assertEqual(together["lines"], 8)
        self.assertIsNotNone(together["timed"], "all runs have steps and times: the axis can be switched")
        self.assertGreaterEqual(told["charts"][3]["lines"], 4, "kinds of memory have lines of their own")

    def test_a_training_run_leaves_a_page_with_its_curves(self):
        titles = ["Loss", "Memory", "Evaluation accuracy", "Learning rate", "Throughput"]
        told = self.check(self.trained, titles)
        self.assertEqual(told["charts"][0]["lines"], 2, "training and evaluation")
        self.assertIn("memory: ", self.trained.read_text())

    def test_pages_are_small_and_name_nobody_else(self):
        for page in (self.single, self.compared, self.trained):
            text = page.read_text()
            self.assertLess(len(text), 1_000_000, page)
            self.assertIn("default-src 'none'", text)
            addresses = set(re.findall(r"https?://[^\s\"'<>)]+", text))
            self.assertLessEqual(addresses, {"https://github.com/leeoniya/uPlot"}, page)


if __name__ == "__main__":
    unittest.main()
