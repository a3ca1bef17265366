"""OpenAI's own SDK, newest and strict: every answer must be as OpenAI's schema says."""

import csv
import http.server
import json
import queue
import re
import threading

import openai
import pytest
from conftest import LONG, QUICK, finished, in_state, picture, question, upload


@pytest.fixture
def inbox():
    """A little web server and what was posted to it: (headers, body)."""
    posts = queue.Queue()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["content-length"]))
            posts.put((dict(self.headers), body))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_):
            pass

    receiver = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=receiver.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{receiver.server_port}/hook", posts
    receiver.shutdown()


@pytest.fixture(scope="module")
def tuned(client, training_file):
    """A job that has succeeded."""
    job = client.fine_tuning.jobs.create(
        model="tiny",
        training_file=training_file,
        suffix="colours",
        seed=7,
        metadata={"team": "garden"},
        method={"type": "supervised", "supervised": {"hyperparameters": {"n_epochs": 1, "batch_size": 2}}},
        extra_body={"max_steps": 6, "save_steps": 2, "learning_rate": 1e-3, "lora_r": 4, "logging_steps": 1, "eval_split": "20%", "eval_steps": 2, "save_total_limit": 3},
    )
    assert job.status in ("validating_files", "queued", "running")
    job = finished(client, job)
    assert job.status == "succeeded", job.error
    return job


@pytest.fixture
def create(client, training_file):
    """Creates jobs; those that still run after the test are cancelled, so that they are not in the way of others."""
    made = []

    def create(**settings):
        made.append(client.fine_tuning.jobs.create(model="tiny", training_file=training_file, extra_body=settings))
        return made[-1]

    yield create
    for job in made:
        try:
            client.fine_tuning.jobs.cancel(job.id)
            finished(client, job)
        except (openai.BadRequestError, openai.NotFoundError):
            pass


class TestFiles:
    def test_a_file_comes_back_as_it_was_sent(self, client, rows, training_file):
        file = client.files.retrieve(training_file)
        assert (file.filename, file.purpose, file.bytes, file.status) == (
            "rows.jsonl", "fine-tune", rows.stat().st_size, "processed",
        )
        assert client.files.content(training_file).read() == rows.read_bytes()
        assert training_file in [file.id for file in client.files.list(purpose="fine-tune")]

    def test_pages_hold_every_file_once(self, client):
        made = {client.files.create(file=(f"{n}.jsonl", b"{}\n"), purpose="user_data").id for n in range(5)}
        seen = [file.id for file in client.files.list(purpose="user_data", limit=2)]
        assert made <= set(seen) and len(seen) == len(set(seen))
        for id in made:
            assert client.files.delete(id).deleted
            with pytest.raises(openai.NotFoundError):
                client.files.retrieve(id)

    def test_files_are_deleted_while_they_are_listed(self, client):
        made = {client.files.create(file=(f"{n}.jsonl", b"{}\n"), purpose="vision").id for n in range(5)}
        deleted = {client.files.delete(file.id).id for file in client.files.list(purpose="vision", limit=2)}
        assert deleted == made

    def test_an_upload_in_parts_is_one_file(self, client, rows):
        text = rows.read_bytes()
        done = client.uploads.upload_file_chunked(
            file=text, filename="parts.jsonl", bytes=len(text), mime_type="text/jsonl", purpose="fine-tune", part_size=1000
        )
        assert done.status == "completed"
        assert client.files.content(done.file.id).read() == text

    def test_a_cancelled_upload_takes_no_parts(self, client):
        begun = client.uploads.create(bytes=10, filename="a.jsonl", mime_type="text/jsonl", purpose="fine-tune")
        assert client.uploads.cancel(begun.id).status == "cancelled"
        with pytest.raises(openai.BadRequestError):
            client.uploads.parts.create(begun.id, data=b"x" * 10)


class TestJobs:
    def test_a_job_tells_what_it_did(self, client, tuned):
        assert tuned.fine_tuned_model.startswith("ft:tiny:colours:")
        assert tuned.trained_tokens > 0 and tuned.finished_at >= tuned.created_at
        assert (tuned.seed, tuned.metadata, tuned.error) == (7, {"team": "garden"}, None)
        assert tuned.method.supervised.hyperparameters.n_epochs == 1
        assert tuned.garden["settings"]["learning_rate"] == 1e-3
        assert tuned.garden["state"] == "succeeded"

    def test_events_come_newest_first_and_pages_hold_each_once(self, client, tuned):
        all_at_once = client.fine_tuning.jobs.list_events(tuned.id, limit=100).data
        pages = list(client.fine_tuning.jobs.list_events(tuned.id, limit=3))
        assert [event.id for event in pages] == [event.id for event in all_at_once]
        times = [event.created_at for event in pages]
        assert times == sorted(times, reverse=True)
        metrics = [event for event in pages if event.type == "metrics"]
        assert any("train_loss" in event.data for event in metrics)

    def test_checkpoints_are_models(self, client, tuned):
        checkpoints = list(client.fine_tuning.jobs.checkpoints.list(tuned.id, limit=1))
        assert [checkpoint.step_number for checkpoint in checkpoints] == [6, 4, 2]
        assert checkpoints[0].metrics.train_loss > 0
        model = client.models.retrieve(checkpoints[0].fine_tuned_model_checkpoint)
        assert model.garden["kind"] == "checkpoint"

    def test_the_numbers_of_a_job_are_a_file(self, client, tuned, create):
        [result] = tuned.result_files
        file = client.files.retrieve(result)
        assert (file.purpose, file.filename) == ("fine-tune-results", "step_metrics.csv")
        assert result in [file.id for file in client.files.list(purpose="fine-tune-results")]
        table = list(csv.DictReader(client.files.content(result).text.splitlines()))
        assert [int(row["step"]) for row in table] == [1, 2, 3, 4, 5, 6]
        assert all(float(row["train_loss"]) > 0 for row in table)
        assert [bool(row["valid_loss"]) for row in table] == [False, True, False, True, False, True]
        job = finished(client, create(**QUICK))
        client.delete(f"/fine_tuning/jobs/{job.id}", cast_to=object)
        with pytest.raises(openai.NotFoundError):
            client.files.retrieve(job.result_files[0])

    def test_lists_are_filtered_by_metadata(self, client, tuned):
        found = list(client.fine_tuning.jobs.list(metadata={"team": "garden"}, limit=1))
        assert tuned.id in [job.id for job in found]
        assert list(client.fine_tuning.jobs.list(metadata={"team": "other"})) == []

    def test_a_job_pauses_resumes_and_is_cancelled(self, client, create):
        job = create(**LONG)
        running = in_state(client, job, "running")
        assert running.status == "running"
        client.fine_tuning.jobs.pause(job.id)
        paused = in_state(client, job, "paused")
        assert paused.status == "queued", "OpenAI knows no other word for it"
        step = paused.garden["progress"]["step"]
        assert client.fine_tuning.jobs.resume(job.id).garden["state"] in ("queued", "running")
        in_state(client, job, "running")
        client.fine_tuning.jobs.cancel(job.id)
        cancelled = finished(client, job)
        assert cancelled.status == "cancelled" and cancelled.garden["progress"]["step"] >= step

    def test_equal_keys_make_one_job(self, client, training_file):
        def create(key, **more):
            return client.fine_tuning.jobs.create(
                model="tiny", training_file=training_file, extra_body={**QUICK, **more},
                extra_headers={"Idempotency-Key": key},
            ).id

        first = create("once")
        assert create("once") == first
        assert create("twice") != first
        with pytest.raises(openai.BadRequestError):
            create("once", max_steps=2)

    def test_a_request_that_the_sdk_repeats_makes_one_job(self, client, create, training_file):
        def send(retries, **settings):
            return client.fine_tuning.jobs.create(
                model="tiny", training_file=training_file, extra_body={**QUICK, **settings},
                extra_headers={"x-stainless-retry-count": str(retries)},
            ).id

        first = send(0, seed=21)
        assert send(1, seed=21) == first, "its answer was lost"
        assert send(0, seed=21) != first, "another request for the same"
        assert send(1, seed=22) != first

    def test_a_rerun_with_a_key_makes_one_job(self, client, tuned):
        def rerun(key, **changes):
            return client.post(
                f"/fine_tuning/jobs/{tuned.id}/rerun", cast_to=dict, body=changes, options={"headers": {"Idempotency-Key": key}},
            )["id"]

        first = rerun("again", max_steps=2, suffix="a")
        assert rerun("again", suffix="a", max_steps=2) == first, "the order of fields does not matter"
        assert rerun("more", max_steps=2, suffix="a") != first

    def test_hyperparameters_of_both_places_are_joined(self, client, training_file):
        job = client.fine_tuning.jobs.create(
            model="tiny",
            training_file=training_file,
            hyperparameters={"n_epochs": 1, "learning_rate_multiplier": 0.5},
            method={"type": "supervised", "supervised": {"hyperparameters": {"batch_size": 8}}},
        )
        asked = finished(client, job).method.supervised.hyperparameters
        assert (asked.n_epochs, asked.learning_rate_multiplier, asked.batch_size) == (1, 0.5, 8)
        settings = client.get(f"/fine_tuning/jobs/{job.id}/settings", cast_to=dict)
        assert settings["batch_size"] == 8 and settings["learning_rate"] == 1e-4, settings

    def test_deprecated_hyperparameters_alone_are_honoured(self, client, training_file):
        job = client.fine_tuning.jobs.create(
            model="tiny", training_file=training_file, hyperparameters={"n_epochs": 2, "batch_size": "auto"},
            extra_body={"batch_size": 12, "gradient_accumulation_steps": 1},
        )
        job = finished(client, job)
        assert job.status == "succeeded" and job.hyperparameters.n_epochs == 2
        assert job.garden["progress"]["max_steps"] == 4, "24 rows, 12 a batch, twice"

    def test_a_validation_file_is_evaluated(self, client, training_file, rows):
        other = client.files.create(file=("held-out.jsonl", b"".join(rows.read_bytes().splitlines(True)[:4])), purpose="fine-tune")
        job = client.fine_tuning.jobs.create(
            model="tiny", training_file=training_file, validation_file=other.id, extra_body={**QUICK, "eval_steps": 2},
        )
        job = finished(client, job)
        assert (job.status, job.validation_file) == ("succeeded", other.id)
        checkpoints = list(client.fine_tuning.jobs.checkpoints.list(job.id))
        assert all(checkpoint.metrics.full_valid_loss > 0 for checkpoint in checkpoints)

    def test_jobs_without_metadata_are_listed_alone(self, client, tuned, create):
        job = create(**QUICK)
        listed = client.get("/fine_tuning/jobs?metadata=null&limit=100", cast_to=dict)["data"]
        ids = [listed["id"] for listed in listed]
        assert job.id in ids and tuned.id not in ids

    def test_all_weights_are_trained_where_that_is_asked_for(self, client, create):
        done = finished(client, create(**QUICK, method="full"))
        assert done.status == "succeeded", done.error
        settings = client.get(f"/fine_tuning/jobs/{done.id}/settings", cast_to=dict)
        assert settings["method"] == "full", settings
        again = client.post(f"/fine_tuning/jobs/{done.id}/rerun", cast_to=dict, body={"method": "lora"})
        assert again["garden"]["settings"]["method"] == "lora"

    def test_a_deleted_job_is_gone(self, client, create):
        job = create(**QUICK)
        done = finished(client, job)
        client.delete(f"/fine_tuning/jobs/{job.id}", cast_to=object)
        with pytest.raises(openai.NotFoundError):
            client.fine_tuning.jobs.retrieve(job.id)
        assert done.fine_tuned_model not in [model.id for model in client.models.list()]


class TestChat:
    def ask(self, client, model, **options):
        options = {"messages": question(picture()), "max_completion_tokens": 8, "temperature": 0, **options}
        return client.chat.completions.create(model=model, **options)

    def test_the_tuned_model_answers_about_an_image(self, client, tuned):
        answer = self.ask(client, tuned.fine_tuned_model)
        assert answer.choices[0].message.role == "assistant"
        assert answer.model == tuned.fine_tuned_model
        assert answer.usage.prompt_tokens > 4 and answer.usage.completion_tokens <= 8
        assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens

    def test_pieces_of_a_stream_make_the_whole_answer(self, client, tuned):
        whole = self.ask(client, tuned.fine_tuned_model)
        chunks = list(self.ask(client, tuned.fine_tuned_model, stream=True, stream_options={"include_usage": True}))
        assert len({chunk.id for chunk in chunks}) == 1
        assert chunks[0].choices[0].delta.role == "assistant"
        assert chunks[-1].choices == [] and chunks[-1].usage == whole.usage
        assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason
        pieces = [choice.delta.content or "" for chunk in chunks for choice in chunk.choices]
        assert "".join(pieces) == (whole.choices[0].message.content or "")

    # The base model's weights are random: drawn at temperature 1, its answers are long rows of words.
    RANDOM = {"model": "tiny", "temperature": 1, "seed": 3, "max_completion_tokens": 24}

    def test_an_answer_that_is_cut_says_so(self, client):
        answer = self.ask(client, **self.RANDOM)
        assert answer.choices[0].finish_reason == "length" and answer.usage.completion_tokens == 24

    def test_an_answer_stops_where_it_is_told(self, client):
        whole = self.ask(client, **self.RANDOM).choices[0].message.content
        word = re.search("[a-z]{3}", whole[5:])[0]
        cut = self.ask(client, **self.RANDOM, stop=[word]).choices[0]
        assert cut.finish_reason == "stop"
        assert cut.message.content == whole[: whole.index(word)]

    def test_log_probabilities_come_with_the_tokens(self, client):
        answer = self.ask(client, **{**self.RANDOM, "temperature": 0}, logprobs=True, top_logprobs=3)
        tokens = answer.choices[0].logprobs.content
        assert len(tokens) == answer.usage.completion_tokens == 24
        assert all(token.logprob <= 0 and len(token.top_logprobs) == 3 for token in tokens)
        assert tokens[0].token == tokens[0].top_logprobs[0].token, "temperature 0 takes the likeliest"

    def test_equal_seeds_draw_equal_answers(self, client):
        def draw(seed):
            return self.ask(client, **{**self.RANDOM, "seed": seed}).choices[0].message.content

        assert draw(5) == draw(5) != draw(6)

    @pytest.mark.parametrize("model", ["tiny", "tuned"])
    def test_an_answer_follows_a_schema(self, client, tuned, model):
        model = tuned.fine_tuned_model if model == "tuned" else model
        schema = {
            "type": "object",
            "properties": {"colour": {"enum": ["red", "green", "blue"]}, "round": {"type": "boolean"}},
            "required": ["colour", "round"],
            "additionalProperties": False,
        }
        answer = self.ask(
            client, model, max_completion_tokens=64,
            response_format={"type": "json_schema", "json_schema": {"name": "shape", "schema": schema, "strict": True}},
        )
        value = json.loads(answer.choices[0].message.content)
        assert value["colour"] in ("red", "green", "blue") and isinstance(value["round"], bool)

    def test_an_answer_is_an_object_where_that_is_asked_for(self, client):
        # Random weights rarely come to an end: of a few answers one does.
        options = {**self.RANDOM, "max_completion_tokens": 200, "response_format": {"type": "json_object"}}
        answers = [self.ask(client, **{**options, "temperature": 1.5, "seed": seed}).choices[0] for seed in range(12)]
        assert all(answer.message.content.lstrip().startswith("{") for answer in answers)
        whole = [answer.message.content for answer in answers if answer.finish_reason == "stop"]
        assert whole and all(isinstance(json.loads(text), dict) for text in whole)

    def test_image_tokens_are_counted(self, client):
        usage = self.ask(client, "tiny").usage
        assert usage.prompt_tokens_details.image_tokens == 4, "56 x 56 pixels are four patches of 28 x 28"
        text = self.ask(client, "tiny", messages=question()).usage
        assert text.prompt_tokens_details.image_tokens == 0

    def test_every_image_of_a_message_counts(self, client):
        one = self.ask(client, "tiny")
        two = self.ask(client, "tiny", messages=question(picture(), picture("blue")))
        assert two.usage.prompt_tokens > one.usage.prompt_tokens


def post_about(posts, job):
    """The post about a job, after those about others."""
    while True:
        headers, body = posts.get(timeout=60)
        if json.loads(body)["data"]["id"] == job.id:
            return headers, body


class TestWebhooks:
    def test_the_end_of_a_job_is_posted_and_the_sdk_verifies_it(self, client, server, create, inbox):
        url, posts = inbox
        endpoint = client.webhooks.create(
            name="mine", url=url, event_types=["fine_tuning.job.succeeded", "fine_tuning.job.cancelled"]
        )
        job = create(**QUICK)
        finished(client, job)
        headers, body = post_about(posts, job)
        event = server.client(webhook_secret=endpoint.signing_secret).webhooks.unwrap(body, headers)
        assert (event.type, event.data.id) == ("fine_tuning.job.succeeded", job.id)
        with pytest.raises(openai.InvalidWebhookSignatureError):
            client.webhooks.unwrap(body + b" ", headers, secret=endpoint.signing_secret)

        job = create(**LONG)
        in_state(client, job, "running")
        client.fine_tuning.jobs.cancel(job.id)
        headers, body = post_about(posts, job)
        event = client.webhooks.unwrap(body, headers, secret=endpoint.signing_secret)
        assert (event.type, event.data.id) == ("fine_tuning.job.cancelled", job.id)
        assert client.webhooks.delete(endpoint.id).deleted

    def test_the_failure_of_a_job_is_posted(self, client, inbox, training_file):
        url, posts = inbox
        endpoint = client.webhooks.create(name="failures", url=url, event_types=["fine_tuning.job.failed"])
        # Every number it learns is too large at the first step.
        job = client.fine_tuning.jobs.create(
            model="tiny", training_file=training_file, extra_body={**QUICK, "learning_rate": 1e30, "warmup_steps": 0, "max_grad_norm": 0},
        )
        job = finished(client, job)
        assert job.status == "failed" and job.error.code and job.error.message and job.fine_tuned_model is None
        assert "/blobs/" not in job.error.message and "/jobs/" not in job.error.message
        headers, body = post_about(posts, job)
        event = client.webhooks.unwrap(body, headers, secret=endpoint.signing_secret)
        assert (event.type, event.data.id) == ("fine_tuning.job.failed", job.id)
        assert client.webhooks.delete(endpoint.id).deleted

    def test_endpoints_are_listed_changed_tested_and_rotated(self, client, inbox):
        url, posts = inbox
        made = client.webhooks.create(name="a", url=url, event_types=["fine_tuning.job.failed"])
        assert made.signing_secret.startswith("whsec_")
        assert client.webhooks.retrieve(made.id).name == "a"
        assert client.webhooks.update(made.id, name="b").name == "b"
        assert client.webhooks.list(limit=1).data[0].name == "b", "newest first"
        assert client.webhooks.test(made.id, event_type="fine_tuning.job.failed").status_code == 204
        headers, body = posts.get(timeout=60)
        client.webhooks.verify_signature(body, headers, secret=made.signing_secret)
        rotated = client.webhooks.rotate_secret(made.id, keep_old_secret_active_for_24_hours=True)
        client.webhooks.test(made.id, event_type="fine_tuning.job.failed")
        headers, body = posts.get(timeout=60)
        for secret in (made.signing_secret, rotated.signing_secret):
            client.webhooks.verify_signature(body, headers, secret=secret)
        assert client.webhooks.event_types.list().data == [
            "fine_tuning.job.succeeded", "fine_tuning.job.failed", "fine_tuning.job.cancelled",
        ]
        assert client.webhooks.delete(made.id).deleted
        with pytest.raises(openai.NotFoundError):
            client.webhooks.retrieve(made.id)


class TestModels:
    def test_models_are_listed_and_found_by_their_names(self, client, tuned):
        listed = {model.id: model for model in client.models.list()}
        assert listed["tiny"].garden["kind"] == "base"
        assert listed[tuned.fine_tuned_model].garden["kind"] == "adapter"
        assert client.models.retrieve(tuned.fine_tuned_model).id == tuned.fine_tuned_model
        with pytest.raises(openai.NotFoundError):
            client.models.retrieve("Qwen/none")


class TestErrors:
    @pytest.mark.parametrize(
        ("change", "param"),
        [
            ({"training_file": "file-none"}, "training_file"),
            ({"extra_body": {"no_such_setting": 1}}, "no_such_setting"),
            ({"extra_body": {"learning_rate": "fast"}}, "learning_rate"),
            ({"extra_body": {"output_dir": "/etc"}}, "output_dir"),
            ({"suffix": "x" * 65}, "suffix"),
            ({"metadata": {str(n): "x" for n in range(17)}}, "metadata"),
            ({"method": {"type": "dpo"}}, "method"),
            ({"extra_body": {"method": "quick"}}, "method"),
            ({"extra_body": {"model": 3}}, "model"),
            ({"model": "Qwen/none"}, "model"),
            ({"seed": -1}, "seed"),
            ({"metadata": {"a": 1}}, "metadata"),
            ({"hyperparameters": {"n_epochs": 1.5}}, "n_epochs"),
            ({"hyperparameters": {"n_epochs": 0}}, "n_epochs"),
            ({"extra_body": {"priority": "high"}}, "priority"),
            ({"extra_body": {"max_restarts": -1}}, "max_restarts"),
            ({"extra_body": {"target_modules": "nothing_proj"}}, "target_modules"),
            ({"extra_body": {"split": "nope"}}, "split"),
            ({"extra_body": {"columns": "image=photo"}}, "columns"),
            ({"extra_body": {"memory_budget": "1MB"}}, "memory_budget"),
        ],
    )
    def test_a_wrong_job_is_a_bad_request_that_names_the_field(self, client, training_file, change, param):
        with pytest.raises(openai.BadRequestError) as caught:
            client.fine_tuning.jobs.create(**{"model": "tiny", "training_file": training_file, **change})
        error = caught.value
        assert error.message and error.request_id
        assert error.param == param, error.body
        assert "blobs/" not in error.message and "/tmp" not in error.message

    def test_bad_rows_are_named_by_the_name_of_their_file(self, client, rows):
        bad = client.files.create(file=("mine.jsonl", rows.read_bytes() + b'{"a": 1}\n'), purpose="fine-tune").id
        good = upload(client, rows)
        for files, param in (({"training_file": bad}, "training_file"), ({"training_file": good, "validation_file": bad}, "validation_file")):
            with pytest.raises(openai.BadRequestError) as caught:
                client.fine_tuning.jobs.create(model="tiny", **files, extra_body={"on_bad_row": "fail"})
            assert caught.value.param == param and "mine.jsonl, row 25" in caught.value.message, caught.value.message
            assert "blobs" not in caught.value.message

    def test_a_setting_that_contradicts_an_adapter_tells_the_models_name(self, client, tuned, training_file):
        with pytest.raises(openai.BadRequestError) as caught:
            client.fine_tuning.jobs.create(model=tuned.fine_tuned_model, training_file=training_file, extra_body={"lora_r": 8})
        assert caught.value.param == "lora_r"
        assert tuned.fine_tuned_model in caught.value.message and "output" not in caught.value.message

    def test_a_question_that_is_too_long_names_the_field_that_was_sent(self, client):
        for name in ("max_tokens", "max_completion_tokens"):
            with pytest.raises(openai.BadRequestError) as caught:
                client.chat.completions.create(model="tiny", messages=question(text="hello"), **{name: 10**6})
            assert caught.value.param == name

    def test_a_job_that_can_never_fit_is_refused_with_its_plan(self, start_server, rows):
        client = start_server("--memory-budget", "10MB").client()
        with pytest.raises(openai.BadRequestError) as caught:
            job = client.fine_tuning.jobs.create(model="tiny", training_file=upload(client, rows), extra_body=QUICK)
            # Where the plan takes longer than a request, the job fails instead.
            raise AssertionError(finished(client, job))
        assert "MB" in caught.value.message

    def test_unknown_things_are_not_found(self, client):
        for ask in (client.files.retrieve, client.fine_tuning.jobs.retrieve, client.models.retrieve):
            with pytest.raises(openai.NotFoundError):
                ask("none")
        with pytest.raises(openai.NotFoundError):
            client.chat.completions.create(model="none", messages=question(text="hello"))

    @pytest.mark.parametrize("model", ["no-such-model", "../tiny", "/etc", "tiny/../tiny", ""])
    def test_a_model_that_is_not_the_servers_is_not_found_and_never_a_path(self, client, training_file, model):
        with pytest.raises((openai.NotFoundError, openai.BadRequestError)) as caught:
            client.fine_tuning.jobs.create(model=model, training_file=training_file)
        assert caught.value.param == "model"

    def test_a_job_that_is_over_cannot_be_cancelled_again(self, client, tuned):
        with pytest.raises(openai.BadRequestError):
            client.fine_tuning.jobs.cancel(tuned.id)

    def test_wrong_questions_are_bad_requests(self, client):
        hello = question(text="hello")
        for wrong in (
            {"messages": []},
            {"messages": hello, "temperature": 9},
            {"messages": hello, "max_completion_tokens": 0},
            {"messages": question("http://169.254.169.254/a.png")},
            {"messages": question("data:image/png;base64,AAAA")},
            {"messages": hello, "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": 3}}}},
        ):
            with pytest.raises(openai.BadRequestError):
                client.chat.completions.create(**{"model": "tiny", **wrong})

    def test_wrong_keys_are_refused(self, start_server, tmp_path):
        tokens = tmp_path / "tokens"
        tokens.write_text("me sk-0123456789abcdef0123456789abcdef\n")
        tokens.chmod(0o600)
        server = start_server("--token-file", tokens)
        for key in ("none", "sk-0123456789abcdef0123456789abcdee"):
            with pytest.raises(openai.AuthenticationError):
                server.client(api_key=key).models.list()
        assert server.client(api_key="sk-0123456789abcdef0123456789abcdef").models.list().data

    def test_too_many_requests_are_told_to_wait(self, start_server):
        client = start_server("--rate-limit", 1).client()
        with pytest.raises(openai.RateLimitError) as caught:
            for _ in range(200):
                client.models.list()
        assert int(caught.value.response.headers["retry-after"]) >= 1

    def test_other_sites_and_other_names_are_refused(self, server):
        ways = [
            ({"Origin": "https://evil.example"}, lambda client: client.files.delete("file-none")),
            ({"Host": "evil.example"}, lambda client: client.models.list()),
        ]
        for header, ask in ways:
            with pytest.raises(openai.APIStatusError) as caught:
                ask(server.client(default_headers=header))
            assert caught.value.status_code in (400, 403, 421)
