"""Makes the man pages of kvd's programs out of what they print for --help.

    python3 deploy/package/man_pages.py BIN_FOLDER OUT_FOLDER [NAME...]

Writes OUT_FOLDER/man1/kvdctl.1.gz and the like. The text is --help's, line by line, with a section for
each subcommand. A program that does not answer --help with exit status 0 is an error.
"""

import gzip
import re
import subprocess
import sys
from pathlib import Path

# What `whatis` shows, and the section.
PAGES = {
    "kvd": (8, "daemon that owns the KV-cache memory of LLM inference engines"),
    "kvd-holder": (8, "runs kvd and keeps its memory while it is started again"),
    "kvdctl": (1, "look into a running kvd, tune it, find what is wrong"),
    "kvd-plan": (1, "decisions of kvd's planner from JSON snapshots"),
    "kvd-sim": (1, "kvd's decisions under a virtual clock"),
    "kvd-pattern": (1, "client of kvd that checks its bytes"),
    "kvd-engine": (1, "reference engine with an OpenAI-compatible endpoint"),
}


def help_of(program: Path, subcommands: list[str]) -> str:
    """What `program subcommands… --help` prints, without the path it was started by."""
    run = subprocess.run([program, *subcommands, "--help"], capture_output=True, text=True,
                         stdin=subprocess.DEVNULL, timeout=60, check=True)
    return run.stdout.replace(str(program), program.name)


def subcommands_in(text: str) -> list[str]:
    """The names that stand under "Subcommands:"."""
    listed = re.search(r"^Subcommands:\n((?:  .*\n|\n(?=  ))*)", text, re.M)
    return re.findall(r"^  ([a-z][a-z-]*)", listed.group(1), re.M) if listed else []


def roff(text: str) -> str:
    """Lines that troff prints as they are; the option or name that opens a line is bold."""
    lines = []
    for line in text.rstrip().splitlines():
        safe = line.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace("`", "\\(ga")
        safe = re.sub(r"[^\x00-\x7f]", lambda found: f"\\[u{ord(found[0]):04X}]", safe)
        opening = re.match(r"(  )((?:\\-)[^ ]+|[a-z][a-z0-9\\-]*)(?=  |$| [A-Z\"])", safe)
        if opening:
            safe = f"{opening[1]}\\fB{opening[2]}\\fR{safe[opening.end():]}"
        lines.append("\\&" + safe if safe.startswith(".") else safe)
    return ".nf\n" + "\n".join(lines) + "\n.fi\n"


def without_end_of(text: str, other: str) -> str:
    """The text without the lines at its end that end the other, too: what is said of the program."""
    lines, others = text.rstrip().splitlines(), other.rstrip().splitlines()
    while lines and others and lines[-1] == others.pop():
        lines.pop()
    return "\n".join(lines)


def sections(program: Path, subcommands: list[str], above: str = "") -> str:
    """The help of the program or of one of its subcommands, and of those below."""
    whole = help_of(program, subcommands)
    text = without_end_of(whole, above)
    title = f".SS {' '.join([program.name, *subcommands])}\n" if subcommands else ".SH DESCRIPTION\n"
    inner = [sections(program, [*subcommands, name], whole) for name in subcommands_in(whole)]
    heading = ".SH SUBCOMMANDS\n" if inner and not subcommands else ""
    return title + roff(text) + heading + "".join(inner)


def page(program: Path) -> str:
    section, purpose = PAGES[program.name]
    others = ",\n".join(f".BR {name} ({number})" for name, (number, _) in PAGES.items()
                        if name != program.name)
    name = program.name.replace("-", "\\-")
    return (f".TH {program.name.upper()} {section} \"\" kvd \"kvd\"\n"
            f".SH NAME\n{name} \\- {purpose}\n"
            f"{sections(program, [])}"
            f".SH SEE ALSO\n{others.replace(',', ' ,')}\n")


def main() -> None:
    binaries, out = Path(sys.argv[1]).resolve(), Path(sys.argv[2])
    for name in sys.argv[3:] or PAGES:
        section = PAGES[name][0]
        folder = out / f"man{section}"
        folder.mkdir(parents=True, exist_ok=True)
        text = gzip.compress(page(binaries / name).encode(), mtime=0)
        (folder / f"{name}.{section}.gz").write_bytes(text)


if __name__ == "__main__":
    main()
