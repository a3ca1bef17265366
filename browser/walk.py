"""A real server and a real browser: what a walk through the pages needs."""

import os
import pathlib
import shutil
import socket
import subprocess
import tempfile
import time
import unittest
import urllib.request

from playwright.sync_api import expect, sync_playwright

ROOT = pathlib.Path(__file__).resolve().parent.parent
GARDEN = pathlib.Path(os.environ.get("GARDEN", ROOT / "target" / "debug" / "model-garden"))
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    # Pages must not need the network: whatever else they ask for, nobody answers.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
]
# Nothing is decided by time: this is for what never happens.
PATIENCE = 120_000


def garden(*arguments):
    done = subprocess.run([GARDEN, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


class Server:
    """A server with a data folder of its own."""

    def __init__(self, folder, *flags):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.address = f"http://127.0.0.1:{self.port}"
        command = [GARDEN, "serve", "--port", self.port, "--data-dir", folder, "--memory-budget", "4GB", *flags]
        self.log = open(folder.with_suffix(".log"), "w")
        self.process = subprocess.Popen([*map(str, command)], stdout=self.log, stderr=self.log)
        for _ in range(300):
            try:
                urllib.request.urlopen(self.address + "/health")
                return
            except OSError:
                time.sleep(0.1)
        raise AssertionError("the server does not answer: " + folder.with_suffix(".log").read_text())

    def stop(self):
        self.process.terminate()
        self.process.wait(60)
        self.log.close()


class Walk(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        garden("init", "--preset", "tiny", "--output", cls.folder / "models" / "tiny")
        garden("dataset", "create", "--kind", "shapes", "--rows", 40, "--size", "56x56", "--output", cls.folder / "shapes")
        cls.rows = cls.folder / "shapes.jsonl"
        garden("dataset", "convert", cls.folder / "shapes", cls.rows)
        cls.server = Server(cls.folder / "data", "--models-dir", cls.folder / "models")
        cls.addClassCleanup(cls.server.stop)
        playwright = sync_playwright().start()
        cls.addClassCleanup(playwright.stop)
        chromium = shutil.which(os.environ.get("CHROMIUM", "chromium"))
        expect.set_options(timeout=PATIENCE)
        cls.browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        cls.addClassCleanup(cls.browser.close)

    def setUp(self):
        self.heard = []
        self.page = self.open_window()

    def tearDown(self):
        self.page.context.close()
        self.assertEqual(self.heard, [], "the console is silent, and nothing leaves the machine")

    def open_window(self, **settings):
        page = self.browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **settings}).new_page()
        page.set_default_timeout(PATIENCE)
        own = ("http://127.0.0.1:", "data:", "blob:")
        page.on("console", self.hear)
        page.on("pageerror", lambda error: self.heard.append(str(error)))
        page.on("request", lambda asked: None if asked.url.startswith(own) else self.heard.append(asked.url))
        return page

    def hear(self, said):
        if said.type in ("error", "warning"):
            self.heard.append(said.text)

    def go(self, path):
        self.page.goto(self.server.address + path)

    def upload(self):
        """Uploads the rows, unless they are there."""
        self.go("/datasets")
        expect(self.page.locator("#list")).not_to_have_attribute("aria-busy", "true")
        if self.page.get_by_text("shapes.jsonl", exact=True).count() == 0:
            self.page.set_input_files("#upload-files", self.rows)
        expect(self.page.locator("#list")).to_contain_text("shapes.jsonl")

    def start(self, name, **settings):
        """Starts a job by the form, and waits on its page."""
        self.go("/jobs/new")
        self.page.fill("#suffix", name)
        for key, value in settings.items():
            field = self.page.locator(f"#option-{key}")
            self.page.eval_on_selector(f"#option-{key}", "field => { field.closest('details').open = true; }")
            field.fill(str(value))
        expect(self.page.locator("#plan .plan-total")).to_contain_text("MB")
        self.page.get_by_role("button", name="Start").click()
        self.page.wait_for_url("**/jobs/ftjob-*")
        expect(self.page.get_by_role("heading", level=1)).to_have_text(name)

    def state(self):
        return self.page.locator("#head .chip")

    def reach(self, figure):
        """How far the drawn axis of a chart reaches; nothing is drawn below 0."""
        return float(figure.get_attribute("data-reach") or -1)

    def wait_for_reach(self, more_than, figure=None):
        """Waits until a chart, that of the loss without another, is drawn beyond a place."""
        figure = figure or self.page.locator("#curves figure").first
        for _ in range(300):
            if (reach := self.reach(figure)) > more_than:
                return reach
            self.page.wait_for_timeout(200)
        self.fail(f"the curve has not moved beyond {more_than}")

    def refused(self, *statuses):
        """Answers that this test asked for: a browser tells of each refusal."""
        self.heard = [said for said in self.heard if not any(str(status) in said for status in statuses)]
