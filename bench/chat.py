"""Answers side by side with HF's generate: tokens a second for one client and for eight.

    python bench/chat.py [--shape small] [--tokens 64] [--rounds 3] [--binary target/release/model-garden]
                                                         (a Python with peers/requirements.txt; builds our side itself)

Both sides read the same model folder in f32 and the same questions of words. Ours is the process that the server asks
(`serve-host`), with one question at a time and with eight at once; HF generates with a batch of one and of eight. The sides take
turns, round by round. Rates are tokens of answers by the time from the question to the last token, the best round counts; ratios
above 1 are in our favour. The last line is JSON.
"""

import argparse, json, os, socket, subprocess, sys, tempfile, time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
QUESTION = "Tell me what a garden needs through the year, {} and more. "
CLIENTS = 8


class Ours:
    """`serve-host` at the other end of a socket."""

    def __init__(self, binary, model, folder):
        path = str(folder / "line")
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(path)
        listener.listen(1)
        self.process = subprocess.Popen([binary, "serve-host", "--socket", path, "--model", model])
        self.connection, _ = listener.accept()
        self.lines = self.connection.makefile("r")
        while "ready" not in json.loads(self.lines.readline()):
            pass
        self.asked = 0

    def answer(self, questions, tokens):
        """Tokens and seconds."""
        waiting = set()
        start = time.perf_counter()
        for words in questions:
            self.asked += 1
            waiting.add(self.asked)
            messages = [{"role": "user", "parts": [{"text": words}]}]
            request = {"messages": messages, "max_tokens": tokens, "temperature": 0.0}
            line = json.dumps({"ask": {"id": self.asked, "request": request}}) + "\n"
            self.connection.sendall(line.encode())
        count = 0
        while waiting:
            reply = json.loads(self.lines.readline())["reply"]
            if "fault" in reply["reply"]:
                sys.exit(f"our side: {reply}")
            if "end" in reply["reply"]:
                waiting.discard(reply["id"])
                count += reply["reply"]["end"]["usage"]["completion_tokens"]
        return count, time.perf_counter() - start

    def stop(self):
        self.connection.shutdown(socket.SHUT_RDWR)
        self.process.wait()


class Theirs:
    """transformers in this process."""

    def __init__(self, model):
        import torch
        from transformers import AutoTokenizer, Qwen2_5_VLForConditionalGeneration

        torch.set_num_threads(len(os.sched_getaffinity(0)))
        self.torch = torch
        self.tokenizer = AutoTokenizer.from_pretrained(model, padding_side="left")
        self.model = Qwen2_5_VLForConditionalGeneration.from_pretrained(model, dtype=torch.float32)
        self.model.eval()

    def answer(self, questions, tokens):
        chats = [[{"role": "user", "content": words}] for words in questions]
        texts = self.tokenizer.apply_chat_template(chats, tokenize=False, add_generation_prompt=True)
        start = time.perf_counter()
        batch = self.tokenizer(texts, return_tensors="pt", padding=True)
        with self.torch.inference_mode():
            options = dict(max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False, use_cache=True)
            out = self.model.generate(**batch, **options)
        count = (out.shape[1] - batch["input_ids"].shape[1]) * len(questions)
        return count, time.perf_counter() - start


def build():
    command = ["cargo", "build", "--release", "--package", "model-garden", "--message-format=json"]
    lines = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    return [item["executable"] for item in map(json.loads, lines) if item.get("executable")][-1]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="small")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--binary")
    parser.add_argument("--ours-only", action="store_true", help="leave HF out")
    arguments = parser.parse_args()
    binary = arguments.binary or build()
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        model = str(folder / "model")
        subprocess.run([binary, "init", "--preset", arguments.shape, "--output", model], check=True, stdout=subprocess.DEVNULL)
        sides = {"ours": Ours(binary, model, folder)}
        if not arguments.ours_only:
            sides["HF"] = Theirs(model)
        best = {}
        for number in range(arguments.rounds + 1):
            for clients in (1, CLIENTS):
                for name, side in sides.items():
                    # Other words each time: nothing is kept from the round before.
                    questions = [QUESTION.format(f"{number} {clients} {client}") * 3 for client in range(clients)]
                    count, seconds = side.answer(questions, arguments.tokens)
                    # The first round warms up.
                    if number > 0:
                        best[name, clients] = max(best.get((name, clients), 0.0), count / seconds)
        sides["ours"].stop()
    figures = {"shape": arguments.shape, "tokens": arguments.tokens}
    for clients in (1, CLIENTS):
        for name in sides:
            figures[f"{name}_{clients}"] = round(best[name, clients], 1)
        line = ", ".join(f"{name} {best[name, clients]:.1f}" for name in sides)
        if "HF" in sides:
            figures[f"ratio_{clients}"] = round(best["ours", clients] / best["HF", clients], 2)
            line += f", ratio {figures[f'ratio_{clients}']}"
        print(f"{arguments.shape}, {clients} at once, tokens a second: {line}")
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
