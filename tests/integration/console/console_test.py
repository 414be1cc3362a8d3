"""The web console as a person meets it: headless Chromium shows that of a real kvd with real engines."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import unittest
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import chromium
import ctest
from kvd_process import KvdProcess, poll_until

PROGRAM = chromium.find()
PICTURES = Path(os.environ.get("KVDTEST_PICTURES", "/tmp/kvd-console"))
WICKED = "<img src=x onerror=alert(1)>"
# Tokens a second, with its table.
CHART = "((f) => { f.querySelector('details').open = true; return f; })(document.querySelectorAll('#charts figure')[2])"
# Requests of some engine rotated out.
ROTATED = ("[...document.querySelector('#engines-table tbody').rows]"
           ".some((row) => Number.parseInt(row.cells[11].textContent) > 0)")  # fmt: skip


@unittest.skipIf(PROGRAM is None, "Chromium is not installed: apt-get install chromium")
class Console(unittest.TestCase):
    def start(self, **options: Any) -> KvdProcess:
        self.kvd: KvdProcess = self.enterContext(KvdProcess(**options))
        return self.kvd

    def start_engine(self, name: str, requests: int, step_ms: int = 20, **more: int) -> subprocess.Popen[bytes]:
        """Decodes for longer than the test takes."""
        arguments = {"prompt": 48, "new": 2000, "layers": 4} | more
        engine = subprocess.Popen(
            [f"{os.environ['KVDTEST_BIN_DIR']}/kvd-pattern", "--endpoint", self.kvd.endpoint, "--name", name,
             "--requests", str(requests), "--step-ms", str(step_ms), "--deadline", "600", "--json",
             *(word for key, value in arguments.items() for word in (f"--{key}", str(value)))],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
        self.addCleanup(engine.wait)
        self.addCleanup(engine.kill)
        return engine

    def browse(self) -> chromium.Chromium:
        assert PROGRAM is not None
        self.page: chromium.Chromium = self.enterContext(chromium.Chromium(PROGRAM))
        self.page.open(f"http://127.0.0.1:{self.kvd.port}/")
        return self.page

    def becomes(self, expression: str) -> None:
        self.assertTrue(self.page.comes_true(expression),
                        f"{expression}: {self.page.text('main')[:2000]} {self.page.complaints}")  # fmt: skip

    def is_live(self) -> None:
        self.becomes("document.body.dataset.state === 'live'")
        self.becomes("document.querySelectorAll('.tile').length === 8")

    def rest(self, method: str, path: str, body: Any) -> None:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.kvd.port}{path}", json.dumps(body).encode(), method=method,
            headers={"Authorization": f"Bearer {self.kvd.token}", "Content-Type": "application/json"})  # fmt: skip
        with urllib.request.urlopen(request, timeout=10) as answer:
            self.assertEqual(answer.status, 200)

    def test_shows_what_kvd_says_and_nothing_of_it_is_markup(self) -> None:
        self.start(slabs=6, dram_slabs=24)
        self.start_engine(WICKED, 24)
        self.start_engine("second", 20)
        page = self.browse()
        self.is_live()
        self.becomes("document.querySelector('#engines-table tbody')?.rows.length === 2")
        self.becomes("Number(document.querySelector('.tile .value').textContent) > 10")
        self.becomes(f"document.getElementById('engines').innerText.includes({json.dumps(WICKED)})")
        self.becomes(f"document.getElementById('events').innerText.includes({json.dumps(WICKED)})")
        self.becomes("document.getElementById('request-engine').options.length === 3")
        self.assertEqual(page.run("document.title"), "kvd")
        self.assertEqual(page.run("document.querySelectorAll('main img, main b b').length"), 0)
        # The pool is small for both, so requests rotate, and the time line has more than one colour.
        self.becomes(ROTATED)
        self.assertEqual(page.complaints, [])

    def test_every_picture_has_a_table_of_the_same(self) -> None:
        self.start(slabs=6, dram_slabs=24)
        self.start_engine("first", 30)
        page = self.browse()
        self.is_live()
        self.becomes("document.querySelector('#engines-table tbody')?.rows.length === 1")
        self.assertEqual(page.run("[...document.querySelectorAll('figure')].filter((f) => f.querySelector('canvas') "
                                  "&& !f.querySelector('details.data')).length"), 0)  # fmt: skip
        self.assertEqual(page.run("[...document.querySelectorAll('canvas')].filter((c) => !c.getAttribute('aria-label')).length"), 0)
        page.run("document.querySelectorAll('details.data').forEach((d) => { d.open = true; })")
        self.becomes("document.querySelectorAll('#tiers details')[0].querySelector('tbody')?.rows.length === 6")
        self.becomes("document.querySelectorAll('#tiers details')[1].querySelector('tbody')?.rows.length === 24")
        self.becomes("document.querySelector('#requests-data tbody').rows.length > 10")
        self.becomes("document.querySelector('#charts details tbody').rows.length > 2")
        shown = page.run("[...document.querySelectorAll('#requests-data tbody tr')].map((row) => row.cells[1].textContent)")
        known = {str(each["request"]) for each in self.kvd.get("/v1/requests")["requests"]}
        self.assertGreater(len(known & set(shown)), 5)
        self.assertEqual(page.complaints, [])

    def test_keys_reach_everything(self) -> None:
        self.start(slabs=6, dram_slabs=24)
        self.start_engine("first", 20)
        page = self.browse()
        self.is_live()
        self.becomes("document.querySelector('#engines-table tbody')?.rows.length === 1")
        page.press("Tab")
        self.assertEqual(page.run("document.activeElement.className"), "skip")
        reached = []
        for _ in range(120):
            page.press("Tab")
            reached.append(page.run("document.activeElement.id || document.activeElement.className || document.activeElement.name"))
        for wanted in ("slab-mode", "grid", "timeline", "request-order", "review-send"):
            found = wanted in reached
            self.assertEqual(found, wanted != "review-send", f"{wanted}: {reached}")  # a closed dialog is not reached
        page.run("document.querySelector('canvas.grid').focus()")
        page.press("ArrowRight")
        page.press("ArrowRight")
        self.becomes("document.querySelector('#tiers .status').textContent.startsWith('slab 1: ')")
        page.run("document.getElementById('timeline').focus()")
        page.press("ArrowDown")
        self.becomes("/^1 first, request \\d+: /.test(document.getElementById('timeline-status').textContent)")

    def explains(self, selector: str, reach: str, sentence: str) -> None:
        self.becomes(f"document.querySelector({json.dumps(selector)}) !== null")
        self.page.run(f"document.querySelector({json.dumps(selector)}){reach}")
        self.becomes(f"!document.getElementById('tip').hidden && document.getElementById('tip').textContent.includes({json.dumps(sentence)})")

    def test_words_are_explained_to_pointer_and_keyboard(self) -> None:
        self.start()
        self.start_engine("chat", 4)
        page = self.browse()
        self.is_live()
        over = ".dispatchEvent(new PointerEvent('pointerover', {bubbles: true}))"
        self.explains(".tile:nth-child(5) .word", over, "Time to first token")
        self.explains("#engines-table th:nth-child(16) .word", over, "waits longest")
        self.explains("#request-legend span:nth-child(5) .word", ".focus()", "out of HBM, in DRAM")
        page.press("Escape")
        self.becomes("document.getElementById('tip').hidden")
        self.explains("#policy-fields input", ".focus()", "set it:")
        # The focus stays while the page changes each second.
        self.explains("#tiers .numbers span:nth-child(3) .word", ".focus()", "partly used")
        seen = "document.querySelector('.tile:nth-child(4) .note').textContent"
        before = page.run(seen)
        self.becomes(f"{seen} !== {json.dumps(before)}")
        self.assertEqual(page.run("document.activeElement.textContent"), "stranded")
        self.assertFalse(page.run("document.getElementById('tip').hidden"))
        self.assertEqual(page.complaints, [])

    def change(self, field: str, text: str) -> None:
        self.page.run(f"(() => {{ const label = [...document.querySelectorAll('#policy-fields label')]"
                      f".find((one) => one.textContent.startsWith('{field}')); const input = label.querySelector('input'); "
                      f"input.value = '{text}'; input.dispatchEvent(new Event('input', {{bubbles: true}})); }})()")  # fmt: skip
        self.page.run("document.querySelector('#policy-form [type=submit]').click()")
        self.becomes("document.getElementById('review').open")

    def send(self, token: str) -> None:
        self.page.run(f"document.getElementById('review-token').value = {json.dumps(token)}")
        self.page.run("document.getElementById('review-send').click()")

    def test_a_change_is_shown_before_it_is_sent_and_needs_the_token(self) -> None:
        self.start()
        page = self.browse()
        self.is_live()
        self.becomes("document.querySelectorAll('#policy-fields label').length > 10")
        self.change("alpha", "7")
        self.assertEqual(page.run("[...document.querySelectorAll('#review-diff td')].map((cell) => cell.textContent)"),
                         ["rotation.alpha", "3", "7"])  # fmt: skip
        self.assertIn('"alpha": 7', page.run("document.getElementById('review-patch').textContent"))
        self.assertEqual(self.kvd.get("/v1/policy")["rotation"]["alpha"], 3)
        self.send("not it")
        self.becomes("document.getElementById('review-error').textContent.includes('not the token')")
        self.assertEqual(self.kvd.get("/v1/policy")["rotation"]["alpha"], 3)
        self.send(self.kvd.token)
        self.becomes("!document.getElementById('review').open")
        self.assertEqual(self.kvd.get("/v1/policy")["rotation"]["alpha"], 7)
        # What kvd refuses is said where it was asked.
        self.change("alpha", "-1")
        self.send(self.kvd.token)
        self.becomes("document.getElementById('review-error').textContent.includes('/rotation/alpha')")
        # Nobody's change is lost: a change is applied to the version that was read.
        self.rest("PATCH", "/v1/policy", {"rotation": {"beta_f": 0.25}})
        self.send(self.kvd.token)
        self.becomes("document.getElementById('review-error').textContent.includes('Somebody else')")
        self.assertEqual(self.kvd.get("/v1/policy")["rotation"]["alpha"], 7)

    def test_goals_of_classes_are_added_changed_and_removed(self) -> None:
        self.start()
        page = self.browse()
        self.is_live()
        self.becomes("document.querySelectorAll('#slo-fields tbody tr').length === 1")

        def save(edit: str) -> None:
            page.run(edit)
            page.run("document.querySelector('#slo-form [type=submit]').click()")
            self.becomes("document.getElementById('review').open")
            self.send(self.kvd.token)
            self.becomes("!document.getElementById('review').open")

        save("document.getElementById('slo-add').click(); "
             "document.querySelector('[aria-label=\"name of the class\"]').value = 'night'; "
             "document.querySelector('[aria-label=\"tbt_s of the new class\"]').value = '2'")  # fmt: skip
        self.assertEqual(self.kvd.get("/v1/slo")["classes"]["night"]["tbt_s"], 2)
        save("document.querySelector('[aria-label=\"ttft_s of night\"]').value = '90'")
        self.assertEqual(self.kvd.get("/v1/slo")["classes"]["night"]["ttft_s"], 90)
        save("[...document.querySelectorAll('#slo-fields button')].pop().click()")
        self.assertEqual(list(self.kvd.get("/v1/slo")["classes"]), ["default"])

    def test_asks_for_the_token_where_reading_needs_it(self) -> None:
        self.start(read="token")
        page = self.browse()
        self.becomes("!document.getElementById('token-form').hidden")
        self.assertEqual(page.run("[...document.querySelectorAll('section, nav')].filter((one) => one.offsetParent).length"), 0)
        page.run("document.getElementById('read-token').focus()")
        page.write(self.kvd.token)
        page.press("Enter")
        self.is_live()
        self.assertTrue(page.run("document.getElementById('token-form').hidden"))
        self.assertEqual(page.run("JSON.stringify([localStorage.length, sessionStorage.length, document.cookie])"), '[0,0,""]')

    def test_finds_kvd_again_and_marks_its_start(self) -> None:
        self.start()
        self.start_engine("chat", 4)
        self.browse()
        self.is_live()
        self.becomes(f"/^[1-9]/.test({CHART}.querySelector('tbody').rows[0].cells[1].textContent)")
        self.kvd.kill()
        self.says_since_when()
        self.kvd.start()
        self.is_live()
        self.becomes(f"({CHART}.querySelector('canvas').getAttribute('aria-label').match(/kvd started \\d+ s ago/g) ?? []).length === 2")
        rates = self.page.run(f"[...{CHART}.querySelectorAll('tbody tr')].map((row) => row.cells[1].textContent)")
        self.assertEqual([rate for rate in rates if rate.startswith("-")], [], "counters begin anew")

    def test_begins_with_what_was_before_it_was_opened(self) -> None:
        self.start()
        self.start_engine("chat", 4)
        self.assertTrue(poll_until(lambda: len(self.kvd.get("/v1/history")["samples"]) > 2))
        self.browse()
        self.is_live()
        self.becomes(f"Number({CHART}.querySelector('tbody tr:last-child td').textContent) > performance.now() / 1000 + 2")

    def test_shows_cache_quotas_drain_and_configuration(self) -> None:
        self.start()
        self.start_engine("chat", 4)
        page = self.browse()
        self.is_live()
        self.becomes("document.getElementById('cache-text').textContent.includes('prompt tokens found')")
        self.rest("PATCH", "/v1/quotas", {"domains": {"default": {"hbm": {"maximum_bytes": 1 << 23}}}})
        self.becomes("/default.*8 MiB/.test(document.getElementById('quota-table').innerText.replaceAll('\\n', ' '))")
        self.rest("PATCH", "/v1/drain", {"node": {"deadline_s": 3600}})
        self.becomes("/node\\s+drain/.test(document.getElementById('drain-table').innerText)")
        page.run("document.getElementById('config').open = true")
        self.becomes("/admin.port\\s+\\d+\\s+\\S/.test(document.getElementById('config-table').innerText)")
        self.assertEqual(page.complaints, [])

    def test_the_doctor_says_who_waits_and_what_to_turn(self) -> None:
        self.start(slabs=6, dram_slabs=24)
        page = self.browse()
        self.is_live()
        self.becomes("document.getElementById('load-table').innerText.includes('no request waits past its goal')")
        self.start_engine("batch", 60, **{"ttft-slo-ms": 1})
        self.becomes("/engine 1 .batch, domain .*requests wait past their goal.*kvdctl/s.test(document.getElementById('load-table').innerText)")
        self.assertEqual(page.complaints, [])

    def test_fits_a_telephone(self) -> None:
        self.start(slabs=6, dram_slabs=24)
        self.start_engine("chat", 12)
        page = self.browse()
        page.resize(390, 844)
        self.is_live()
        self.becomes("document.querySelector('#engines-table tbody')?.rows.length === 1")
        self.becomes("document.querySelector('#slo-fields tbody') !== null")
        self.becomes("document.getElementById('policy-fields').children.length > 2")
        page.save_picture(PICTURES / "telephone.png")
        self.assertLessEqual(page.run("document.documentElement.scrollWidth"), 390)

    def says_since_when(self) -> None:
        self.becomes("document.body.dataset.state === 'lost'")
        self.becomes("/does not answer since .*, \\d+ s$/.test(document.getElementById('live-text').textContent)")
        self.assertEqual(self.page.run("getComputedStyle(document.getElementById('main')).filter"), "grayscale(1)")

    def test_a_kvd_that_stands_still_is_not_shown_as_live(self) -> None:
        self.start()
        self.browse()
        self.is_live()
        self.addCleanup(self.kvd.signal, signal.SIGCONT)
        self.kvd.signal(signal.SIGSTOP)
        self.says_since_when()
        self.kvd.signal(signal.SIGCONT)
        self.is_live()

    def test_more_pages_than_streams_ask_instead(self) -> None:
        self.start()
        wanted = urllib.request.Request(
            f"http://127.0.0.1:{self.kvd.port}/v1/overview", headers={"Accept": "text/event-stream"})  # fmt: skip
        for _ in range(8):
            stream = self.enterContext(urllib.request.urlopen(wanted, timeout=30))
            self.assertEqual(stream.readline(), b"event: overview\n")
        with self.assertRaises(urllib.error.HTTPError) as ninth:
            urllib.request.urlopen(wanted, timeout=30)
        self.assertEqual(ninth.exception.code, 503)
        self.browse()
        self.becomes("document.getElementById('live-text')?.textContent === 'live, by asking'")
        self.becomes("document.querySelectorAll('.tile').length === 8")

    def test_is_readable_at_64_engines_and_1000_requests(self) -> None:
        self.start(slabs=160, dram_slabs=320, extra="[engine]\nmax_engines = 128\n")
        for number in range(64):
            self.start_engine(f"engine-{number}", 16, step_ms=1500, layers=2)
        page = self.browse()
        self.is_live()
        self.becomes("document.querySelector('#engines-table tbody')?.rows.length === 64")
        self.becomes("Number(document.querySelector('.tile .value').textContent) >= 1000")
        for scheme in ("light", "dark"):
            page.prefer(scheme)
            self.becomes("new Promise((done) => requestAnimationFrame(() => done(true)))")
            page.save_picture(PICTURES / f"crowd-{scheme}.png")
        # Everything fits the window's width, and drawing a picture takes a part of the second that it stays.
        self.assertLessEqual(page.run("document.documentElement.scrollWidth"), 1440)
        taken = page.run("(() => { const began = performance.now(); dispatchEvent(new Event('resize')); "
                         "return performance.now() - began; })()")  # fmt: skip
        self.assertLess(taken, 500)
        self.assertEqual(page.complaints, [])

    def test_is_light_and_dark(self) -> None:
        self.start(slabs=6, dram_slabs=24)
        self.start_engine("chat", 12)
        self.start_engine("batch", 24, step_ms=35)
        page = self.browse()
        self.is_live()
        self.becomes("document.querySelector('#engines-table tbody')?.rows.length === 2")
        self.becomes(ROTATED)
        grounds = []
        for scheme in ("light", "dark"):
            page.prefer(scheme)
            self.becomes("new Promise((done) => requestAnimationFrame(() => done(true)))")
            grounds.append(page.run("getComputedStyle(document.body).backgroundColor"))
            page.save_picture(PICTURES / f"console-{scheme}.png")
        self.assertNotEqual(*grounds)


if __name__ == "__main__":
    ctest.main()
