"""kvd's programs, where `pip install kvd-server` put them."""

import os
import signal
import sys
from pathlib import Path


def main() -> None:
    """Becomes the program that it is called as: the same process, with its descriptors and environment."""
    # Python ignores these, and whoever is exec'd would, too.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    os.execv(Path(__file__).with_name("bin") / Path(sys.argv[0]).name, sys.argv)
