"""Walks the pages of a real server with a real browser, as a person would.

Needs Playwright for Python (pip install playwright; the browser itself is Debian's chromium, which CHROMIUM names).
SCREENSHOTS=DIR keeps screenshots of every page: light, dark and narrow.
"""

import os
import pathlib
import signal
import unittest
import urllib.request

from playwright.sync_api import expect
from walk import ROOT, Server, Walk

TRACE = ROOT / "crates" / "memory" / "tests" / "data" / "founding-run2.log"
PAGES = ["/", "/jobs/new", "/datasets", "/models", "/compare", "/memory", "/machine"]


class Pages(Walk):
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

    def test_2b_wrong_files_are_not_sent_and_bad_rows_can_be_left_out(self):
        self.go("/datasets")
        sent = []
        self.page.on("request", lambda asked: sent.append(asked.url) if asked.method == "POST" else None)
        self.page.set_input_files("#upload-files", {"name": "cat.png", "mimeType": "image/png", "buffer": b"no rows"})
        expect(self.page.locator("#upload")).to_contain_text("cat.png was not sent")
        self.assertEqual(sent, [])
        rows = self.rows.read_text().splitlines()
        rows[1] = '{"question": "What is it?"}'
        self.page.set_input_files("#upload-files", {"name": "torn.jsonl", "mimeType": "text/plain", "buffer": "\n".join(rows).encode()})
        check = self.page.locator("#check")
        expect(check.locator(".thumbs img")).to_have_count(11)
        expect(check.locator(".thumbs")).to_contain_text("Row 2 is bad")
        wrong = check.locator(".note.bad")
        expect(wrong.locator("li")).to_contain_text("Row 2:")
        self.assertNotIn("--", wrong.inner_text())
        self.assertNotIn("torn.jsonl", wrong.inner_text())
        wrong.get_by_role("button", name="Leave the bad rows out").click()
        self.page.wait_for_url("**/jobs/new?*")
        expect(self.page.locator("#option-on_bad_row")).to_have_value("skip")
        expect(self.page.locator("#option-max_bad_rows")).to_have_value("1")
        expect(self.page.locator("#plan .plan-total")).to_contain_text("MB")
        self.go("/datasets")
        torn = self.page.locator("tr", has_text="torn.jsonl")
        torn.get_by_role("button", name="Delete").click()
        self.page.get_by_role("dialog").get_by_role("button", name="Delete").click()
        expect(torn).to_have_count(0)

    def test_3_the_form_has_a_live_plan_and_says_what_is_wrong_at_its_field(self):
        self.upload()
        self.go("/jobs/new")
        total = self.page.locator("#plan .plan-total")
        expect(total).to_contain_text("MB")
        before = total.inner_text()
        self.page.fill("#option-batch_size", "16")
        expect(total).not_to_have_text(before)
        self.page.fill("#option-epochs", "many")
        # The plan is refused, and says so at the field, before anything is started.
        self.expect_wrong("#option-epochs")
        self.page.fill("#max_restarts", "-1")
        self.expect_wrong("#max_restarts")
        self.page.get_by_role("button", name="Start").click()
        expect(self.page.locator("#max_restarts")).to_be_focused()
        self.page.fill("#max_restarts", "")
        self.page.fill("#suffix", "no spaces please")
        self.page.fill("#option-epochs", "2")
        expect(total).to_contain_text("MB")
        self.page.get_by_role("button", name="Start").click()
        self.expect_wrong("#suffix")
        expect(self.page.locator("#suffix")).to_be_focused()
        self.assertIn("/jobs/new", self.page.url)
        self.refused(400)

    def expect_wrong(self, selector):
        field = self.page.locator(selector)
        expect(field).to_have_attribute("aria-invalid", "true")
        expect(self.page.locator("#" + field.get_attribute("aria-describedby").split()[0])).to_be_visible()

    def test_3b_the_form_outlives_a_reload_and_takes_a_model_of_the_hub(self):
        self.upload()
        self.go("/jobs/new")
        self.page.fill("#suffix", "kept")
        self.page.fill("#option-batch_size", "3")
        self.page.reload()
        expect(self.page.locator("#suffix")).to_have_value("kept")
        expect(self.page.locator("#option-batch_size")).to_have_value("3")
        self.page.get_by_role("button", name="Begin afresh").click()
        expect(self.page.locator("#suffix")).to_have_value("")
        # Nothing is fetched from the hub: the question itself is what is looked at.
        self.page.route("**/v1/garden/plan", lambda route: route.fulfill(status=400, json={"error": {"message": "seen", "param": "model"}}))
        self.page.select_option("#model", label="a model of the hub …")
        hub = self.page.get_by_label("Name of the model on the hub")
        hub.fill("someone/some-model")
        with self.page.expect_request("**/v1/garden/plan") as asked:
            hub.blur()
        self.assertEqual(asked.value.post_data_json["model"], "someone/some-model")
        self.expect_wrong("#model")
        self.refused(400)

    def test_4_a_job_is_started_followed_through_a_reload_and_cancelled(self):
        self.upload()
        self.start("endless", epochs=100000, batch_size=2, gradient_accumulation_steps=1, logging_steps=1)
        expect(self.state()).to_have_text("running")
        seen = self.wait_for_reach(0)
        seen = self.wait_for_reach(seen)
        memory = self.page.locator("#memory-chart figure")
        self.wait_for_reach(self.wait_for_reach(0, memory), memory)
        self.page.reload()
        self.wait_for_reach(seen)
        expect(self.page.locator("#live")).to_have_text("live")
        self.go("/")
        expect(self.page.locator("#jobs")).to_contain_text("running")
        expect(self.page.locator("#jobs svg.spark").first).to_be_visible()
        self.page.get_by_role("link", name="endless").click()
        cancel = self.page.get_by_role("button", name="Cancel")
        self.press_slowly(cancel)
        self.page.get_by_role("dialog").get_by_role("button", name="No").click()
        expect(cancel).to_be_focused()
        self.page.wait_for_timeout(2500)
        expect(cancel).to_be_focused()
        self.page.keyboard.press("Enter")
        self.page.get_by_role("button", name="Cancel the job").click()
        expect(self.state()).to_have_text("cancelled")
        expect(self.page).to_have_title("cancelled · endless · Model Garden")
        self.page.locator("#actions").get_by_role("button", name="Delete").click()
        self.page.get_by_role("dialog").get_by_role("button", name="Delete").click()
        self.page.wait_for_url(self.server.address + "/")

    def press_slowly(self, button):
        """A press that lasts longer than the page needs to draw its numbers anew."""
        button.hover()
        self.page.mouse.down()
        self.page.wait_for_timeout(2500)
        self.page.mouse.up()

    def test_5_a_job_is_paused_resumed_and_its_tuned_model_answers_beside_the_base(self):
        self.upload()
        self.start("garden", epochs=40, batch_size=2, gradient_accumulation_steps=1, eval_split=4, learning_rate=0.002)
        expect(self.state()).to_have_text("running")
        self.page.get_by_role("button", name="Pause").click()
        expect(self.state()).to_have_text("paused")
        self.page.get_by_role("button", name="Resume", exact=True).click()
        expect(self.state()).to_have_text("succeeded")
        expect(self.page.locator("#verdict")).to_contain_text("planned")
        expect(self.page).to_have_title("succeeded · garden · Model Garden")
        expect(self.page.locator("#checkpoints")).to_contain_text("Resume from here")
        expect(self.page.locator("#settings")).to_contain_text("learning_rate")
        expect(self.page.locator("#log")).to_contain_text("Step")
        self.page.get_by_role("button", name="Ask the checkpoints").click()
        expect(self.page.locator("#answers li", has_text="base model").first).to_be_visible()
        expect(self.page.get_by_role("button", name="Ask new checkpoints")).to_be_visible()
        self.page.get_by_role("link", name="Try it").click()
        self.page.set_input_files("#try-images", {"name": "notes.txt", "mimeType": "text/plain", "buffer": b"no image"})
        expect(self.page.locator("#try")).to_contain_text("notes.txt: no image")
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
        # A rate that is the default, written otherwise, does not differ.
        for name, settings in [("narrow", {"lora_r": 4, "learning_rate": "0.0002"}), ("broad", {"lora_r": 8})]:
            self.start(name, epochs=2, **settings)
            expect(self.state()).to_have_text("succeeded")
        expect(self.page.locator("#answers")).to_contain_text("No row was held out")
        self.go("/")
        for name in ("narrow", "broad"):
            self.page.get_by_label(f"Compare {name}").check()
        self.page.get_by_role("link", name="Compare 2").click()
        expect(self.page.locator("tr[data-differs]")).to_contain_text("lora_r")
        expect(self.page.locator("#settings")).to_contain_text("shapes.jsonl")
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
        self.page.get_by_role("link", name="Resume from here").first.click()
        expect(self.page.get_by_role("heading", level=1)).to_contain_text("On from step")
        go_on = self.page.get_by_role("button", name="Go on from here")
        expect(self.page.locator("#form .note.warn")).to_contain_text("nothing left to do")
        expect(go_on).to_be_disabled()
        self.page.fill("#option-epochs", "3")
        go_on.click()
        self.page.wait_for_url("**/jobs/ftjob-*")
        expect(self.page.locator("#head")).to_contain_text("Goes on from step")
        expect(self.state()).to_have_text("succeeded")

    def test_6c_a_merged_model_can_be_tried_at_once(self):
        self.go("/models")
        self.page.locator("tr", has_text=":narrow:").get_by_role("button", name="Merge").first.click()
        name = self.page.get_by_label("Name of the merged model")
        expect(name).to_be_focused()
        name.fill("")
        self.page.get_by_role("button", name="Leave it").click()
        expect(name).to_have_count(0)
        self.page.locator("tr", has_text=":narrow:").get_by_role("button", name="Merge").first.click()
        name.fill("grafted")
        name.press("Enter")
        merged = self.page.locator("tr", has_text="grafted")
        merged.get_by_role("button", name="Try").click()
        expect(self.page.locator("#try-model")).to_have_value("merged:grafted")
        expect(self.page.locator("#try-question")).to_be_focused()

    def test_6d_a_job_that_was_killed_says_so_and_how_to_go_on(self):
        self.upload()
        self.start("prey", epochs=100000, batch_size=2, gradient_accumulation_steps=1)
        expect(self.page.locator("#checkpoints")).to_contain_text("Resume from here")
        self.wait_for_reach(0, self.page.locator("#memory-chart figure"))
        os.kill(self.trainer_of(self.page.url.rsplit("/", 1)[1]), signal.SIGKILL)
        expect(self.state()).to_have_text("failed")
        told = self.page.locator("#trouble")
        expect(told).to_contain_text("The job was killed (signal 9)")
        expect(told.get_by_role("link", name="Resume from step")).to_be_visible()
        expect(told.get_by_role("link", name="Run again")).to_be_visible()
        told.locator("summary").click()
        for advice in ("Nothing to do", "Watch for longer", "--"):
            self.assertNotIn(advice, told.inner_text())
        self.go("/")
        expect(self.page.locator("tr", has_text="prey")).to_contain_text("The job was killed")

    def trainer_of(self, job):
        """The process that trains a job."""
        for folder in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                words = (folder / "cmdline").read_text().split("\0")
            except OSError:
                continue
            if words[1:2] == ["train-vision"] and any(job in word for word in words):
                return int(folder.name)
        self.fail(f"no process trains {job}")

    def test_6e_every_new_checkpoint_is_asked_and_no_answer_is_lost(self):
        self.upload()
        # Steps are few and slow enough for questions between them; only the last two checkpoints are kept.
        self.start("asked", epochs=100000, batch_size=36, gradient_accumulation_steps=8, eval_split=4)
        expect(self.page.locator("#checkpoints")).to_contain_text("Resume from here")
        self.page.get_by_role("button", name="Ask the checkpoints").click()
        expect(self.page.get_by_label("ask every new checkpoint")).to_be_checked()
        answers = self.page.locator("#answers article").first.locator("li")
        # Without another press: the base model, and more checkpoints than are kept.
        expect(answers.nth(4)).to_be_visible()
        expect(answers.first).to_contain_text("base model")
        self.page.get_by_role("button", name="Stop and keep").click()
        expect(self.state()).to_have_text("stopped")
        expect(self.page.locator("#head")).to_contain_text("its last checkpoint is the result")

    def test_6f_a_peak_above_the_plan_is_a_warning(self):
        self.go("/")
        self.page.get_by_role("link", name="broad", exact=True).click()
        expect(self.page.locator("#verdict")).to_contain_text("planned")

        def above(route):
            answer = route.fetch()
            job = answer.json()
            job["garden"]["memory"]["peak_bytes"] = job["garden"]["plan"]["total_bytes"] + 7_000_000
            route.fulfill(response=answer, json=job)

        self.page.route("**/v1/fine_tuning/jobs/" + self.page.url.rsplit("/", 1)[1], above)
        self.page.route("**/stream*", lambda route: route.fulfill(content_type="text/event-stream", body=""))
        self.page.reload()
        expect(self.page.locator("#verdict .note.warn")).to_contain_text("7.0 MB more than")
        expect(self.page.locator("#verdict .note.warn")).to_contain_text("limit")

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
        self.wait_for_reach(self.wait_for_reach(0, answer.locator("figure")), answer.locator("figure"))
        self.page.get_by_role("button", name="Stop watching").click()
        self.page.fill("#pid", "4000000")
        self.page.get_by_role("button", name="Watch", exact=True).click()
        expect(answer.locator(".note.bad")).to_contain_text("There is no process 4000000")
        self.refused(400)

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

    def test_8b_a_loaded_model_is_shown_and_unloaded(self):
        # Models that were asked before may be loaded too.
        load = urllib.request.Request(self.server.address + "/v1/garden/chat/tiny", method="POST")
        urllib.request.urlopen(load).close()
        self.go("/machine")
        expect(self.page.locator("#loaded")).to_contain_text("MB")
        unload = self.page.get_by_role("button", name="Unload tiny", exact=True)
        unload.click()
        expect(unload).to_have_count(0)

    def test_8c_pages_say_that_the_server_is_away_and_come_back_with_it(self):
        self.go("/")
        expect(self.page.locator("#jobs")).to_contain_text("broad")
        job = self.page.get_by_role("link", name="broad", exact=True).get_attribute("href")
        away = lambda route: route.abort("connectionrefused")
        self.page.route("**/v1/**", away)
        expect(self.page.locator("#trouble")).to_contain_text("does not answer")
        expect(self.page.locator("#jobs")).to_contain_text("broad")
        for path, place in [(job, "#trouble"), ("/models", "#list"), ("/jobs/new", "#form"), ("/machine", "#now"), ("/machine", "#storage")]:
            self.go(path)
            expect(self.page.locator(place)).to_contain_text("does not answer")
            expect(self.page.get_by_text("No such job")).to_have_count(0)
            self.page.unroute("**/v1/**", away)
            expect(self.page.locator(place)).not_to_contain_text("does not answer")
            self.page.route("**/v1/**", away)
        self.refused("ERR_CONNECTION_REFUSED")

    def test_8d_a_file_dropped_beside_its_place_does_not_replace_the_page(self):
        self.go("/datasets")
        kept = self.page.evaluate(
            """() => {
              const files = new DataTransfer();
              files.items.add(new File(['{}'], 'rows.jsonl'));
              const happens = name => new DragEvent(name, {dataTransfer: files, bubbles: true, cancelable: true});
              return ['dragover', 'drop'].map(name => !document.querySelector('h1').dispatchEvent(happens(name)));
            }"""
        )
        self.assertEqual(kept, [True, True])

    def test_8e_on_a_phone_the_plan_comes_before_the_form(self):
        self.upload()
        self.page.set_viewport_size({"width": 390, "height": 800})
        self.go("/jobs/new")
        total = self.page.locator("#plan .plan-total")
        expect(total).to_contain_text("MB")
        self.assertLess(total.bounding_box()["y"], self.page.locator("#model").bounding_box()["y"])

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
