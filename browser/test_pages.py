"""Opens the pages that `model-garden` writes in headless Chromium, and looks at what a reader would see."""

import os
import pathlib
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
GARDEN = ROOT / "target" / "debug" / "model-garden"
LOGS = ROOT / "crates" / "memory" / "tests" / "data"
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    # The page must not need the network: whatever it asks for, nobody answers.
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--virtual-time-budget=10000",
]


def open_page(page, *extra):
    """The document after its scripts have run, and what the browser's console said."""
    with tempfile.TemporaryDirectory() as profile:
        command = [os.environ["CHROMIUM"], *FLAGS, f"--user-data-dir={profile}", "--enable-logging=stderr", *extra]
        done = subprocess.run([*command, page.as_uri()], capture_output=True, text=True, timeout=120)
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return done.stdout, console


class Pages(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def garden(self, *arguments):
        done = subprocess.run([GARDEN, *map(str, arguments)], capture_output=True, text=True)
        self.assertNotEqual(done.returncode, 2, done.stderr)

    def opened(self, page):
        document, console = open_page(page, "--dump-dom")
        self.assertEqual([line for line in console if "Error" in line], [])
        return document

    def test_analyze_draws_the_curve_and_names_the_verdict(self):
        page = self.folder / "page.html"
        facts = ["--dataset-size", 663, "--samples-per-step", 8]
        self.garden("memory", "analyze", LOGS / "founding-run2.log", *facts, "--html", page)
        document = self.opened(page)
        self.assertIn("main-svg", document, "plotly drew no chart")
        self.assertIn("fill", document)
        self.assertIn("per sample", document)

    def test_report_compares_runs_on_one_page(self):
        page = self.folder / "page.html"
        self.garden("memory", "report", LOGS / "founding-run1.log", LOGS / "founding-run2.log", "--html", page)
        document = self.opened(page)
        self.assertIn("founding-run1", document)
        self.assertIn("founding-run2", document)
        self.assertIn("main-svg", document, "plotly drew no chart")

    def test_a_training_run_leaves_a_page_with_its_four_curves(self):
        model, rows, output = (self.folder / name for name in ("model", "rows", "out"))
        self.garden("init", "--preset", "tiny", "--output", model)
        self.garden("dataset", "create", "--kind", "shapes", "--rows", 16, "--size", "56x56", "--output", rows)
        names = ["--base-model", model, "--dataset", rows, "--output-dir", output]
        self.garden("train-vision", *names, "--batch-size", 2, "--epochs", 4, "--logging-steps", 2, "--eval-split", 4)
        document = self.opened(output / "report.html")
        self.assertEqual(document.count("<svg"), 4)
        for title in ("Loss", "Learning rate", "Throughput", "Memory", "memory: "):
            self.assertIn(title, document)
        # Every chart has a curve in it.
        self.assertGreaterEqual(document.count('d="M'), 4)


if __name__ == "__main__":
    unittest.main()
