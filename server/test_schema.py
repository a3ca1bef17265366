"""The OpenAPI document against the server: no fault of its own, nothing off the schema, whatever is sent."""

import json
import pathlib
import re
import subprocess
import sys
import urllib.request

import pytest
from conftest import LONG, QUICK, finished, upload

EXAMPLES = 12
# Statuses that every route may give besides its own: the guard's, and those of a body that is no body.
GUARD = {400, 401, 403, 404, 405, 408, 409, 413, 415, 422, 429}


@pytest.fixture(scope="module")
def document(server):
    return json.load(urllib.request.urlopen(f"{server.url}/openapi.json"))


def test_every_operation_is_described(document):
    assert document["openapi"].startswith("3.")
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            where = f"{method} {path}"
            assert operation.get("responses"), where
            assert operation.get("operationId"), where
            assert operation.get("summary"), where
            answers = [answer for status, answer in operation["responses"].items() if status.startswith("2")]
            assert answers, where
    ids = [operation["operationId"] for path in document["paths"].values() for operation in path.values()]
    assert len(ids) == len(set(ids)), "each operation has a name of its own"


def test_openais_routes_are_all_there(document):
    wanted = """
        /v1/files get post; /v1/files/{} get delete; /v1/files/{}/content get; /v1/uploads post; /v1/uploads/{}/parts post;
        /v1/uploads/{}/complete post; /v1/uploads/{}/cancel post; /v1/fine_tuning/jobs get post; /v1/fine_tuning/jobs/{} get;
        /v1/fine_tuning/jobs/{}/cancel post; /v1/fine_tuning/jobs/{}/pause post; /v1/fine_tuning/jobs/{}/resume post;
        /v1/fine_tuning/jobs/{}/events get; /v1/fine_tuning/jobs/{}/checkpoints get; /v1/fine_tuning/jobs/{}/stream get;
        /v1/models get; /v1/models/{} get delete; /v1/chat/completions post; /v1/webhook_endpoints get post;
        /v1/webhook_endpoints/{} get post delete; /health get; /metrics get
    """
    there = {re.sub(r"{[^}]*}", "{}", path): set(operations) for path, operations in document["paths"].items()}
    for line in wanted.replace("\n", " ").split(";"):
        path, *methods = line.split()
        assert path in there and set(methods) <= there[path], line


def write_config(path, values):
    """Tells schemathesis real ids, beside those that it makes up: by chance it would find none."""
    dictionaries, operations = "", ""
    for number, (pattern, name, ids) in enumerate(values):
        dictionaries += f"[dictionaries.ids{number}]\nvalues = {json.dumps(ids)}\n\n"
        operations += f"[[operations]]\ninclude-path-regex = '{pattern}'\nexclude-method = 'DELETE'\n"
        operations += f"parameters = {{ 'path.{name}' = {{ dictionary = 'ids{number}', probability = 0.7 }} }}\n\n"
    path.write_text(dictionaries + operations)


def test_whatever_is_sent_the_answer_is_as_described(start_server, rows, tmp_path):
    # No limit of requests: it would answer for the routes. A server of its own: this one is filled with rubbish.
    server = start_server("--rate-limit", 0)
    client = server.client()
    file = upload(client, rows)
    done = finished(client, client.fine_tuning.jobs.create(model="tiny", training_file=file, extra_body=QUICK))
    paused = client.fine_tuning.jobs.create(model="tiny", training_file=file, extra_body=LONG)
    client.fine_tuning.jobs.pause(paused.id)
    begun = client.uploads.create(bytes=10, filename="a.jsonl", mime_type="text/jsonl", purpose="fine-tune")
    endpoint = client.webhooks.create(name="a", url="http://127.0.0.1:9/", event_types=["fine_tuning.job.failed"])
    write_config(
        tmp_path / "schemathesis.toml",
        [
            ("^/v1/fine_tuning/jobs/", "id", [done.id, paused.id]),
            ("^/v1/files/", "file_id", [file]),
            ("^/v1/uploads/", "upload_id", [begun.id]),
            ("^/v1/webhook_endpoints/", "id", [endpoint.id]),
            ("^/v1/(garden/)?models/", "id", ["tiny", done.fine_tuned_model]),
        ],
    )
    # In a folder of its own, or schemathesis reads pytest's arguments as its own.
    done = subprocess.run(
        [
            str(pathlib.Path(sys.executable).parent / "schemathesis"),
            "--config-file", str(tmp_path / "schemathesis.toml"), "run", f"{server.url}/openapi.json",
            "--phases", "examples,coverage,fuzzing",
            "--max-examples", str(EXAMPLES),
            "--seed", "14",
            "--generation-deterministic",
            "--request-timeout", "20",
            "--max-time", "150",
            "--no-shrink",
            # Streams of events do not end by themselves; the tests of the SDK and of the pages read them.
            "--exclude-path-regex", "/(stream|watch)$",
            "--checks", "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance,response_headers_conformance",
            "--no-color",
        ],
        cwd=tmp_path, capture_output=True, text=True, timeout=240,
    )
    assert server.process.poll() is None, "the server lives"
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-2000:]
    assert server.client().models.list().data, "and answers"
