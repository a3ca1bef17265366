"""Walks the pages of a real server with a real browser, as a person would.

Needs Playwright for Python (pip install playwright; the browser itself is Debian's chromium, which CHROMIUM names).
SCREENSHOTS=DIR keeps screenshots of every page: light, dark and narrow.
"""

import os
import pathlib
import re
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
TRACE = ROOT / "crates" / "memory" / "tests" / "data" / "founding-run2.log"
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
PAGES = ["/", "/jobs/new", "/datasets", "/models", "/compare", "/memory", "/machine"]
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
        page.on("console", lambda said: self.heard.append(said.text) if said.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: self.heard.append(str(error)))
        page.on("request", lambda asked: None if asked.url.startswith(own) else self.heard.append(asked.url))
        return page

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

    def points(self):
        """Steps that the chart of the loss has drawn."""
        figure = self.page.locator("#curves figure").first
        if figure.locator("canvas").count() == 0:
            return 0
        figure.locator("summary").click()
        words = figure.locator("caption").inner_text()
        figure.locator("summary").click()
        return int(re.search(r"the (\d+) points", words)[1])

    def wait_for_points(self, more_than):
        for _ in range(300):
            points = self.points()
            if points > more_than:
                return points
            self.page.wait_for_timeout(200)
        self.fail(f"the curve has not moved beyond {more_than} points")

    def test_1_an_empty_server_tells_what_to_do(self):
        self.go("/")
        expect(self.page.get_by_role("heading", name="Plant the first one")).to_be_visible()
        self.page.keyboard.press("g")
        self.page.keyboard.press("d")
        self.page.wait_for_url("**/datasets")
        expect(self.page.locator("#list")).to_contain_text("No rows yet")
        self.page.keyboard.press("?")
        expect(self.page.get_by_role("dialog", name="Keyboard")).to_be_visible()

    def test_2_a_dataset_is_uploaded_checked_and_shown_with_its_mask(self):
        self.upload()
        self.page.get_by_role("button", name="Check").click()
        check = self.page.locator("#check")
        expect(check).to_contain_text("No bad row")
        expect(check.locator(".bars li").first).to_be_visible()
        expect(check.locator(".thumbs img")).to_have_count(12)
        expect(check.locator("mark").first).to_contain_text("<|im_end|>")
        self.page.get_by_role("button", name="The next row").click()
        expect(check).to_contain_text("Row 2:")

    def test_3_the_form_has_a_live_plan_and_says_what_is_wrong_at_its_field(self):
        self.upload()
        self.go("/jobs/new")
        total = self.page.locator("#plan .plan-total")
        expect(total).to_contain_text("MB")
        before = total.inner_text()
        self.page.fill("#option-batch_size", "16")
        expect(total).not_to_have_text(before)
        self.page.fill("#option-epochs", "many")
        self.page.get_by_role("button", name="Start").click()
        expect(self.page.locator("#option-epochs")).to_have_attribute("aria-invalid", "true")
        self.assertIn("/jobs/new", self.page.url)
        # The refusals of the plan and of the job are the answers that were asked for.
        self.heard = [said for said in self.heard if "400" not in said]

    def test_4_a_job_is_started_followed_through_a_reload_and_cancelled(self):
        self.upload()
        self.start("endless", epochs=100000, batch_size=2, gradient_accumulation_steps=1, logging_steps=1)
        expect(self.state()).to_have_text("running")
        seen = self.wait_for_points(0)
        seen = self.wait_for_points(seen)
        self.page.reload()
        self.wait_for_points(seen)
        expect(self.page.locator("#live")).to_have_text("live")
        self.go("/")
        expect(self.page.locator("#jobs")).to_contain_text("running")
        expect(self.page.locator("#jobs svg.spark").first).to_be_visible()
        self.page.get_by_role("link", name="endless").click()
        self.page.get_by_role("button", name="Cancel").click()
        self.page.get_by_role("button", name="Cancel the job").click()
        expect(self.state()).to_have_text("cancelled")
        self.page.locator("#actions").get_by_role("button", name="Delete").click()
        self.page.get_by_role("dialog").get_by_role("button", name="Delete").click()
        self.page.wait_for_url(self.server.address + "/")

    def test_5_a_job_is_paused_resumed_and_its_tuned_model_answers_beside_the_base(self):
        self.upload()
        self.start("garden", epochs=40, batch_size=2, gradient_accumulation_steps=1, eval_split=4, learning_rate=0.002)
        expect(self.state()).to_have_text("running")
        self.page.get_by_role("button", name="Pause").click()
        expect(self.state()).to_have_text("paused")
        self.page.get_by_role("button", name="Resume", exact=True).click()
        expect(self.state()).to_have_text("succeeded")
        expect(self.page.locator("#verdict")).to_contain_text("planned")
        expect(self.page.locator("#checkpoints")).to_contain_text("Resume from here")
        expect(self.page.locator("#settings")).to_contain_text("learning_rate")
        expect(self.page.locator("#log")).to_contain_text("Step")
        self.page.get_by_role("button", name="Ask the checkpoints").click()
        expect(self.page.locator("#answers li", has_text="base model").first).to_be_visible()
        expect(self.page.get_by_role("button", name="Ask new checkpoints")).to_be_visible()
        self.page.get_by_role("link", name="Try it").click()
        image = next((self.folder / "shapes" / "images").iterdir())
        self.page.set_input_files("#try-images", image)
        self.page.fill("#try-tokens", "8")
        self.page.get_by_role("button", name="Ask", exact=True).click()
        answers = self.page.locator("#try .talk section")
        expect(answers).to_have_count(2)
        for at in range(2):
            expect(answers.nth(at)).to_contain_text("a second")

    def test_6_runs_are_compared_and_what_differs_is_marked(self):
        self.upload()
        for name, rank in [("narrow", 4), ("broad", 8)]:
            self.start(name, epochs=2, lora_r=rank)
            expect(self.state()).to_have_text("succeeded")
        self.go("/")
        for name in ("narrow", "broad"):
            self.page.get_by_label(f"Compare {name}").check()
        self.page.get_by_role("link", name="Compare 2").click()
        expect(self.page.locator("tr[data-differs]")).to_contain_text("lora_r")
        expect(self.page.locator("#curves canvas").first).to_be_visible()

    def test_6b_a_job_runs_again_with_other_settings_or_on_from_a_checkpoint(self):
        self.go("/")
        self.page.get_by_role("link", name="narrow", exact=True).click()
        self.page.get_by_role("link", name="Run again …").click()
        expect(self.page.get_by_role("heading", level=1)).to_have_text("Run again")
        expect(self.page.locator("#option-lora_r")).to_have_value("4")
        self.page.fill("#suffix", "again")
        self.page.fill("#option-epochs", "1")
        self.page.get_by_role("button", name="Run again").click()
        self.page.wait_for_url("**/jobs/ftjob-*")
        expect(self.page.locator("#head")).to_contain_text("A rerun of")
        expect(self.state()).to_have_text("succeeded")
        self.page.locator("#head").get_by_role("link").click()
        expect(self.page.get_by_role("heading", level=1)).to_have_text("narrow")
        self.page.get_by_role("link", name="Resume from here").last.click()
        expect(self.page.get_by_role("heading", level=1)).to_contain_text("On from step")
        self.page.get_by_role("button", name="Go on from here").click()
        self.page.wait_for_url("**/jobs/ftjob-*")
        expect(self.page.locator("#head")).to_contain_text("Goes on from step")
        expect(self.state()).to_have_text("succeeded")

    def test_7_a_dropped_log_is_judged_and_a_process_watched(self):
        self.go("/memory")
        self.page.fill("#dataset-size", "663")
        self.page.fill("#samples-per-step", "8")
        self.page.set_input_files("#trace", {"name": "run2.log", "mimeType": "text/plain", "buffer": TRACE.read_bytes()})
        answer = self.page.locator("#answer")
        expect(answer.locator(".verdict .chip")).to_have_text("fill")
        expect(answer.locator("canvas")).to_be_visible()
        self.page.fill("#pid", str(self.server.process.pid))
        self.page.get_by_role("button", name="Watch", exact=True).click()
        expect(answer.locator(".verdict .chip")).to_be_visible()
        expect(answer.locator("canvas")).to_be_visible()
        self.page.get_by_role("button", name="Stop watching").click()

    def test_7b_an_answer_that_comes_late_does_not_replace_a_newer_one(self):
        self.go("/memory")
        held = []
        self.page.route("**/v1/garden/analyze*", lambda route: held.append(route))
        self.page.set_input_files("#trace", {"name": "run2.log", "mimeType": "text/plain", "buffer": TRACE.read_bytes()})
        self.page.fill("#pid", str(self.server.process.pid))
        self.page.get_by_role("button", name="Watch", exact=True).click()
        expect(self.page.locator("#answer .verdict .chip")).to_be_visible()
        with self.page.expect_response("**/v1/garden/analyze*"):
            held[0].continue_()
        self.page.wait_for_timeout(300)
        self.page.get_by_role("button", name="Stop watching").click()
        expect(self.page.locator("#answer-name")).to_contain_text("process")

    def test_8_the_machine_tells_what_fits_and_what_takes_disk(self):
        self.go("/machine")
        expect(self.page.locator("#now")).to_contain_text("used")
        expect(self.page.locator("#fit")).to_contain_text("fits now")
        expect(self.page.locator("#storage")).to_contain_text("datasets")
        expect(self.page.locator("#energy")).to_contain_text("kilowatt-hour")

    def test_9_every_page_is_whole_in_light_dark_and_on_a_phone(self):
        self.upload()
        pages = {path.strip("/").replace("/", "-") or "jobs": path for path in PAGES}
        self.go("/")
        job = self.page.locator("#jobs td.name a").first
        expect(job).to_be_visible()
        pages["job"] = job.get_attribute("href")
        backgrounds = set()
        for tone, width in [("light", 1280), ("dark", 1280), ("light", 390), ("dark", 390)]:
            window = self.open_window(color_scheme=tone, viewport={"width": width, "height": 900})
            for name, path in pages.items():
                with self.subTest(page=name, tone=tone, width=width):
                    window.goto(self.server.address + path)
                    expect(window.locator("main [aria-busy=true]")).to_have_count(0)
                    window.wait_for_timeout(1200)
                    if folder := os.environ.get("SCREENSHOTS"):
                        window.screenshot(path=f"{folder}/server-{name}-{tone}-{width}.png", full_page=True)
                    self.check_page(window, width)
            backgrounds.add(window.evaluate("getComputedStyle(document.body).backgroundColor"))
            window.context.close()
        self.assertEqual(len(backgrounds), 2, "light and dark look the same")

    def check_page(self, window, width):
        """What holds for every page: it fits, has its landmarks, and everything has a name."""
        told = window.evaluate(
            """() => ({
              wide: document.documentElement.scrollWidth,
              landmarks: ['header', 'main', 'nav', 'footer', 'h1'].filter(name => !document.querySelector(name)),
              nameless: [...document.querySelectorAll('button, a, input, select, textarea')].filter(one => {
                const labels = [...(one.labels ?? [])].map(label => label.textContent).join('');
                return !(one.textContent.trim() || one.getAttribute('aria-label') || labels.trim() || one.type === 'hidden');
              }).map(one => one.outerHTML),
              bare: [...document.querySelectorAll('table')].filter(one => !one.caption?.textContent).length,
              doubled: [...document.querySelectorAll('[id]')].map(one => one.id).filter((id, at, all) => all.indexOf(id) !== at),
            })"""
        )
        self.assertLessEqual(told["wide"], width, "the page is wider than its window")
        self.assertEqual((told["landmarks"], told["nameless"], told["bare"], told["doubled"]), ([], [], 0, []))
        window.keyboard.press("Tab")
        self.assertEqual(window.evaluate("document.activeElement.className"), "skip", "the first stop skips to the content")

    def test_a_server_with_keys_asks_who_is_there(self):
        token = "a-token-that-only-this-test-knows"
        keys = self.folder / "tokens"
        keys.write_text(f"tester {token}\n")
        keys.chmod(0o600)
        server = Server(self.folder / "locked", "--token-file", keys)
        self.addCleanup(server.stop)
        self.page.goto(server.address + "/machine")
        self.assertIn("/login?next=", self.page.url)
        self.page.fill("#key", "wrong")
        self.page.get_by_role("button", name="Come in").click()
        expect(self.page.get_by_role("alert")).to_contain_text("not known")
        self.page.fill("#key", token)
        self.page.get_by_role("button", name="Come in").click()
        self.page.wait_for_url("**/machine")
        expect(self.page.locator("#now")).to_contain_text("used")
        self.page.get_by_role("button", name="Leave").click()
        self.page.wait_for_url("**/login")


if __name__ == "__main__":
    unittest.main()
