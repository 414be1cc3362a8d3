"""The guide as a reader would type it: what its pages say is to be typed, and what is then seen.

    python3 docs/follow.py PAGE             prints the page as a script for `sh -e`
    python3 docs/follow.py --wheels [--seen] PAGE   the same for a reader who has wheels and builds nothing
    python3 docs/follow.py --seen PAGE      reads that script's output: is it what the page shows?
    python3 docs/follow.py --left-out       what is not typed, and why

A block of `sh` is typed, a block of `text` is what the block of `sh` before it prints: its lines in this
order, where a number other than 0 may be another one and "…" is anything. A block in another language is a file
where the line before it says "Save this as `NAME`". `sh deploy/package.sh follow` follows every page in
an empty Debian 12; the test of the guide follows some of them on each build.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, field
from pathlib import Path

DOCS = Path(__file__).parent

# What cannot be typed in an empty Debian 12: the beginning of the command, and why. One that no command
# of its page begins with is an error.
LEFT_OUT: dict[str, dict[str, str]] = {
    "../README.md": {
        **dict.fromkeys(
            ("pip install", "kvd --pool.hbm", "export KVD_VLLM", "vllm serve", "until curl", "ask", "rules=", "curl"),
            "vLLM is 0.9 GB and wants a model; `sh deploy/package.sh check-release` types it, in a bare Debian",
        ),
        "sh deploy/demo.sh": "tests of its own run it; it fetches 120 MB from npm and builds for minutes",
        "sh deploy/test.sh": "twenty minutes; continuous integration runs it",
    },
    "quickstart.md": {
        "python3 -m venv": "the other way is typed; `sh deploy/package.sh check-release` goes this one",
    },
    "operations.md": {
        "sh deploy/ci/install-deps.sh": "for the build below",
        "cmake --": "the build that deploy/package.sh was called for; its packages lie where it puts them",
        "sh deploy/package.sh": "has been called: it follows the pages",
        "skopeo": "needs a registry for containers",
        "podman": "needs a container engine, and namespaces that a plain root has not",
        "kubectl": "needs a cluster; a test holds the manifests against the schemas",
        "helm": "needs a cluster; the same test renders the chart",
    },
    "policies.md": {
        "kvd-sim sweep": "a minute of computing each; the test of the command draws a short one",
        "kvd-sim knee": "minutes of computing; the test of the command finds one",
        "kvd-lab": "in builds of the source tree alone; its tests call it",
    },
    "cuda.md": {
        "cmake --preset cuda": "needs the CUDA compiler; continuous integration builds it",
        "kvd --backend cuda": "needs a GPU",
    },
    "nodes.md": {
        "kvd-engine --model m.gguf": "wants a model; vllm.engine_events does it with one made up",
        "helm": "needs a cluster; a test holds what it renders against the schemas",
        "kubectl": "needs a cluster; the same test reads the manifests",
        "kvdctl drain node --to-remote": "needs a Redis server; the test of sessions that move types it",
    },
    "vllm.md": {
        "": "vLLM is 0.9 GB and wants a model; `sh deploy/test.sh --vllm` runs it on real processes",
    },
    "sglang.md": {
        "": "SGLang wants a GPU and a model; the tests with the label sglang run it on real processes",
    },
    "attach.md": {
        "GGML_BACKEND_PATH": "needs llama-server and a model; tests/engines/llama loads the backend",
    },
}

ON_WHEELS: dict[str, dict[str, str]] = {
    "../README.md": dict.fromkeys(("sh deploy/",), "wants a clone"),
    "quickstart.md": dict.fromkeys(("sh deploy/ci/install-deps.sh", "cmake", 'export PATH="$PWD/build'), "not built"),
}

LANGUAGES = {"sh", "text", "c", "cpp", "python", "json"}


@dataclass
class Block:
    page: str
    line: int
    language: str
    text: str
    file: str = ""  # where its text is to be saved
    shows: list[str] = field(default_factory=list)  # the lines of the `text` block after it

    @property
    def name(self) -> str:
        return f"{Path(self.page).name}:{self.line}"

    def commands(self) -> list[str]:
        """Its lines. Lines that end with a backslash are joined with the next one."""
        joined = re.sub(r"\\\n", "\\\\\0", self.text)
        return [line.replace("\0", "\n") for line in joined.splitlines() if line.strip()]


def blocks(page: str) -> list[Block]:
    text = (DOCS / page).read_text()
    found: list[Block] = []
    for match in re.finditer(r"^```([^\n]*)\n(.*?)^```$", text, re.M | re.S):
        before = text[: match.start()].rstrip().splitlines()
        said = re.search(r"[Ss]ave (?:this|it) as `([^`]+)`.*:$", before[-1] if before else "")
        block = Block(page, text.count("\n", 0, match.start()) + 1, match[1], match[2],
                      said[1] if said else "")  # fmt: skip
        if block.language == "text" and found and found[-1].language == "sh":
            found[-1].shows = block.text.splitlines()
        found.append(block)
    return found


def script(page: str, left_out: dict[str, str]) -> str:
    """The block as `sh -e` gets it. ValueError where a line that is to be left out is missing."""
    lines, used = ["exec 2>&1"], set()
    for block in blocks(page):
        if block.file:
            lines += [f"cat >{block.file} <<'END_OF_FILE'", block.text + "END_OF_FILE"]
        if block.language != "sh":
            continue
        lines.append(f"printf '\\n== {block.name}\\n'")
        for command in block.commands():
            omitted = [start for start in left_out if command.startswith(start)]
            used.update(omitted)
            if not omitted:
                lines += ["cat <<'END_OF_COMMAND'", "$ " + command, "END_OF_COMMAND", command]
    if set(left_out) - used:
        raise ValueError(f"{page}: no command begins with {sorted(set(left_out) - used)}")
    return "\n".join(lines) + "\n"


def pattern(line: str) -> re.Pattern[str]:
    text = re.sub(r"\\?\s+", " ", line.strip())
    parts = re.split(r"(\d(?:[\d.,]*\d)?|…| )", text)
    anything = {"…": ".*", " ": r"\s+", "0": r"0(?![\d.])"}
    number = r"[\d.,]*\d"
    return re.compile("".join(
        anything.get(part, number if re.match(r"\d", part) else re.escape(part)) for part in parts
    ))  # fmt: skip


def missing(page: str, output: str, left_out: dict[str, str]) -> list[str]:
    """What the page shows and the output has not."""
    faults = []
    parts = dict(re.findall(r"^== (\S+)\n(.*?)(?=^== |\Z)", output, re.M | re.S))
    for block in blocks(page):
        if not block.shows or any(c.startswith(tuple(left_out)) for c in block.commands()):
            continue
        printed = parts.get(block.name, "").splitlines()
        for line in filter(str.strip, block.shows):
            at = next((i for i, one in enumerate(printed) if pattern(line).search(one)), None)
            if at is None:
                faults.append(f"{block.name} does not print: {line}")
            else:
                printed = printed[at + 1 :]
    return faults


def main(arguments: list[str]) -> int:
    if arguments == ["--left-out"]:
        for page, entries in LEFT_OUT.items():
            for start, reason in entries.items():
                print(f"{Path(page).name}: {start or 'the whole page'}: {reason}")
        return 0
    table = LEFT_OUT
    if arguments[:1] == ["--wheels"]:
        arguments, table = arguments[1:], ON_WHEELS
    if not arguments or arguments[-1].startswith("-"):
        print(__doc__, file=sys.stderr)
        return 2
    page = arguments[-1]
    left_out = table.get(page, {})
    if arguments[0] == "--seen":
        faults = missing(page, sys.stdin.read(), left_out)
        for fault in faults:
            print(fault, file=sys.stderr)
        return 1 if faults else 0
    print(script(page, left_out), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
