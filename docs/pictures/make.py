"""Makes the pictures of the documentation again, from what the program really shows.

    cargo build --release -p model-garden && python docs/pictures/make.py

Writes terminal.svg (a capture of `memory run --format tui` in tmux), report.png (a screenshot of `memory analyze --html` in
Chromium) and founding-case.svg. Needs tmux and chromium; MODEL_GARDEN_BIN and CHROMIUM name other programs.
"""

import html
import os
import pathlib
import re
import subprocess
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
GARDEN = os.environ.get("MODEL_GARDEN_BIN", ROOT / "target/release/model-garden")
CHROMIUM = os.environ.get("CHROMIUM", "chromium")
FOUNDING_RUN = ROOT / "crates/memory/tests/data/founding-run2.log"
FOUNDING_FACTS = ["--dataset-size", "663", "--samples-per-step", "8"]

COLUMNS, ROWS = 112, 34
CELL, LINE, FONT = 8.4, 18, 14
# The sixteen colours of a dark terminal.
COLOURS = ["#1b222c", "#f47067", "#57ab5a", "#d9a441", "#539bf5", "#b083f0", "#39c5cf", "#c9d1d9"]
COLOURS += ["#768390", "#ff938a", "#6bc46d", "#eac55f", "#6cb6ff", "#dcbdfb", "#56d4dd", "#ffffff"]
INK, PAGE = "#c9d1d9", "#10151c"
LAST_STEP = 112


def tmux(*arguments):
    done = subprocess.run(["tmux", "-L", "pictures", *arguments], check=True, capture_output=True, text=True)
    return done.stdout


def captured():
    """The live screen of a run that fills its memory in the first epoch, near its end."""
    command = f"cd {HERE} && exec {GARDEN} memory run --format tui --interval 200ms --limit 400MB"
    command += " --dataset-size 320 --samples-per-step 8 -- python3 lazy_images.py"
    tmux("-f", "/dev/null", "new-session", "-d", "-x", str(COLUMNS), "-y", str(ROWS), command)
    try:
        for _ in range(600):
            time.sleep(0.5)
            screen = tmux("capture-pane", "-p", "-e")
            if f"step {LAST_STEP}" in re.sub(r"\x1b\[[\d;]*m", "", screen):
                return screen
        raise SystemExit("the run did not get on: see `tmux -L pictures attach`")
    finally:
        tmux("kill-server")


def styled(line):
    """Stretches of equal look: text, ink, ground, bold."""
    ink, ground, bold = INK, None, False
    for part in re.split(r"(\x1b\[[\d;]*m)", line):
        codes = re.fullmatch(r"\x1b\[([\d;]*)m", part)
        if not codes:
            if part:
                yield part, ink, ground, bold
            continue
        codes = [int(code or 0) for code in codes[1].split(";")]
        while codes:
            code = codes.pop(0)
            if code == 0:
                ink, ground, bold = INK, None, False
            elif code in (1, 22):
                bold = code == 1
            elif 30 <= code <= 37 or 90 <= code <= 97:
                ink = COLOURS[code - 30 if code < 90 else code - 82]
            elif code == 39:
                ink = INK
            elif 40 <= code <= 47 or 100 <= code <= 107:
                ground = COLOURS[code - 40 if code < 100 else code - 92]
            elif code == 49:
                ground = None
            elif code in (38, 48) and codes[:1] == [5]:
                colour = COLOURS[codes[1]] if codes[1] < 16 else INK
                ink, ground = (colour, ground) if code == 38 else (ink, colour)
                codes = codes[2:]


def terminal_svg(screen):
    """The captured screen in a window."""
    lines = screen.rstrip("\n").split("\n")
    bar, edge = 34, 14
    width, height = COLUMNS * CELL + 2 * edge, len(lines) * LINE + bar + edge
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" role="img"'
        f' font-family="ui-monospace,SFMono-Regular,Menlo,Consolas,\'DejaVu Sans Mono\',monospace" font-size="{FONT}">',
        "<title>model-garden memory run, live: memory fills during the first epoch and stays level from then on</title>",
        f'<rect width="{width:.0f}" height="{height}" rx="10" fill="{PAGE}"/>',
    ]
    for index, colour in enumerate(["#ff5f57", "#febc2e", "#28c840"]):
        out.append(f'<circle cx="{edge + 8 + 20 * index}" cy="17" r="6" fill="{colour}"/>')
    title = "model-garden memory run --format tui -- python3 lazy_images.py"
    out.append(f'<text x="{width / 2:.0f}" y="22" text-anchor="middle" fill="#768390">{title}</text>')
    for row, line in enumerate(lines):
        column, y = 0, bar + row * LINE
        for text, ink, ground, bold in styled(line):
            x, wide = edge + column * CELL, len(text) * CELL
            column += len(text)
            if ground:
                out.append(f'<rect x="{x:.1f}" y="{y}" width="{wide:.1f}" height="{LINE}" fill="{ground}"/>')
            # A stretch of one look is drawn word by word, so that no font can push it out of its columns.
            for word in re.finditer(r"\S+(?: \S+)*", text):
                at, wide = x + word.start() * CELL, len(word[0]) * CELL
                weight = ' font-weight="600"' if bold else ""
                shown = html.escape(word[0], quote=False)
                out.append(
                    f'<text x="{at:.1f}" y="{y + FONT}" textLength="{wide:.1f}" lengthAdjust="spacingAndGlyphs"'
                    f' fill="{ink}"{weight} xml:space="preserve">{shown}</text>'
                )
    return "\n".join([*out, "</svg>", ""])


def report_png(path):
    """A screenshot of the page about the founding run."""
    with tempfile.TemporaryDirectory() as folder:
        page = pathlib.Path(folder) / "page.html"
        subprocess.run([GARDEN, "memory", "analyze", FOUNDING_RUN, *FOUNDING_FACTS, "--limit", "24GB", "--html", page], stdout=subprocess.DEVNULL)
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run", "--virtual-time-budget=5000"]
        flags += [f"--user-data-dir={folder}/profile", "--window-size=1000,860", f"--screenshot={path}"]
        subprocess.run([CHROMIUM, *flags, page.as_uri()], check=True, capture_output=True)


def main():
    (HERE / "terminal.svg").write_text(terminal_svg(captured()))
    report_png(HERE / "report.png")
    picture = HERE / "founding-case.svg"
    subprocess.run([GARDEN, "memory", "analyze", FOUNDING_RUN, *FOUNDING_FACTS, "--svg", picture], stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
