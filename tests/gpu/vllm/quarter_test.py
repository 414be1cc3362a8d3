"""quarter.py: each item until its deadline, and a report that is whole after each of them."""

from __future__ import annotations

import json
import tempfile
import threading
import unittest
from collections.abc import Callable, Sequence
from pathlib import Path

import ctest

import items
import quarter
from quarter import FAIL, NOT_RUN, PASS, Item, Report, Results

Run = Callable[[list[str], Results], None]


def item(name: str, run: Run, seconds: int = 60, refusal: str = "") -> Item[list[str]]:
    return Item(name, f"about {name}", seconds, {"one": "it holds", "two": "this, too"}, run, lambda _: refusal)


def good(done: list[str], results: Results) -> None:
    done.append("good")
    results.check("one", True, "as it should")
    results.check("two", True)


def hangs(done: list[str], results: Results) -> None:
    results.check("one", True)
    done.append("hangs")
    threading.Event().wait()


def breaks(done: list[str], results: Results) -> None:
    raise RuntimeError("a pipe | broke")


class Quarter(unittest.TestCase):
    def setUp(self) -> None:
        self.out = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.done: list[str] = []
        self.given_up = 0

    def play(self, table: Sequence[Item[list[str]]], seconds: float = 600, only: Sequence[str] = ()) -> list[tuple[str, str, str]]:
        def give_up() -> None:
            self.given_up += 1

        report = Report(table, {"card": "none", "driver": "none"})
        chosen = only or [each.id for each in table]
        quarter.run_all(table, chosen, self.done, report, self.out, seconds, give_up)
        document = json.loads((self.out / "quarter.json").read_text())
        return [(each["item"], each["state"], each["reason"]) for each in document["criteria"]]

    def test_one_that_hangs_is_ended_and_the_next_begins(self) -> None:
        found = self.play([item("A", hangs, seconds=0), item("B", good)])
        self.assertEqual(self.done, ["hangs", "good"])
        self.assertEqual(found[0][:2], ("A", PASS), "what it had said before stays")
        self.assertEqual(found[1][:2], ("A", FAIL))
        self.assertIn("ended by its deadline", found[1][2])
        self.assertEqual([each[:2] for each in found[2:]], [("B", PASS), ("B", PASS)])
        self.assertEqual(self.given_up, 1)

    def test_one_that_breaks_says_why_and_the_next_begins(self) -> None:
        found = self.play([item("A", breaks), item("B", good)])
        self.assertEqual(found[0], ("A", FAIL, "RuntimeError: a pipe | broke"))
        self.assertIn("a pipe / broke", (self.out / "quarter.md").read_text())
        self.assertEqual(found[2][1], PASS)

    def test_what_was_not_run_says_so(self) -> None:
        found = self.play([item("A", good, refusal="no GPU"), item("B", good), item("C", good, seconds=900)], 200, ["A", "B", "C"])
        self.assertEqual(found[0], ("A", NOT_RUN, "no GPU"))
        self.assertEqual(found[2][1], PASS)
        self.assertEqual(found[4], ("C", NOT_RUN, "before it the time was used up"))
        self.assertEqual(self.play([item("A", good)], only=["B"])[0][2], "not asked for")

    def test_nothing_is_tried_after_what_all_the_rest_needs_broke_off(self) -> None:
        table = [item("A", good), item("B", breaks), item("C", good)]
        table[1].needed = True
        self.assertEqual(self.play(table)[4], ("C", NOT_RUN, "before it B broke off"))
        self.assertEqual(self.done, ["good"])
        self.assertEqual(quarter.not_passed(self.out / "quarter.json"), ["B", "C"])

    def test_a_second_call_takes_what_failed_first(self) -> None:
        self.play([item("A", good), item("B", breaks), item("C", good, seconds=3000), item("D", hangs, seconds=0)], 600)
        self.assertEqual(quarter.not_passed(self.out / "quarter.json"), ["B", "D", "C"])

    def test_the_report_is_there_before_anything_has_run(self) -> None:
        def looks(done: list[str], results: Results) -> None:
            states = {each["state"] for each in json.loads((self.out / "quarter.json").read_text())["criteria"]}
            results.check("one", states == {NOT_RUN})
            results.check("two", True)

        self.assertEqual(self.play([item("A", looks)])[0][1], PASS)

    def test_the_table_fits_into_its_calls(self) -> None:
        most = sum(each.seconds for each in items.TABLE[:5])
        self.assertLessEqual(most, 500, "kvd alone, first light, warm and pressure leave room in the first call")
        names = [each.id for each in items.TABLE]
        self.assertEqual(len(set(names)), len(names))


if __name__ == "__main__":
    ctest.main()
