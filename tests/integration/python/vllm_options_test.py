"""The options of KvdConnector. They need no vLLM."""

from __future__ import annotations

import unittest

import ctest
from kvd_vllm.options import Options, parse


class TheOptions(unittest.TestCase):
    def test_have_defaults(self) -> None:
        self.assertEqual(parse({}, {}), Options(None, "vllm", False, 30.0))

    def test_come_from_variables_and_from_the_configuration_which_outweighs_them(self) -> None:
        variables = {
            "KVD_ENDPOINT": "/a", "KVD_VLLM_ENGINE_NAME": "one", "KVD_VLLM_REQUIRED": "1",
            "KVD_VLLM_TIMEOUT_S": "2.5",
        }  # fmt: skip
        self.assertEqual(parse({}, variables), Options("/a", "one", True, 2.5))
        given = {"endpoint": "/b", "engine_name": "two", "required": False, "timeout_s": 1}
        self.assertEqual(parse(given, variables), Options("/b", "two", False, 1.0))
        given = {"prefixes": False, "parking": "no", "step_budget_s": 0.001, "load_timeout_s": 3, "handoff_s": 5}
        found = parse(given, {"KVD_VLLM_STEP_BUDGET_S": "1"})
        self.assertEqual(found[4:], (False, False, 0.001, 3.0, 5.0, False, 0, False))
        elastic = {"KVD_VLLM_ELASTIC": "1", "KVD_VLLM_ELASTIC_KEPT_BYTES": "1048576"}
        self.assertEqual(parse({}, elastic)[9:11], (True, 1 << 20))
        self.assertEqual(parse({"elastic": False, "elastic_kept_bytes": 5}, elastic)[9:11], (False, 5))
        self.assertTrue(parse({}, {"KVD_VLLM_LAYERS": "yes"}).layers)

    def test_that_are_slips_are_refused_by_name(self) -> None:
        for extra, said in (
            ({"requierd": True}, "has no requierd; it has endpoint, engine_name, required, timeout"),
            ({"required": "perhaps"}, "required: 'perhaps' is neither true nor false"),
            ({"timeout_s": -1}, "timeout_s: -1 is no time"),
            ({"timeout_s": "soon"}, "timeout_s: 'soon' is no time"),
            ({"engine_name": "n" * 32}, "longer than 31 bytes"),
            ({"endpoint": 7}, "endpoint: 7 is no text"),
            ({"load": "sync"}, "has no load; it has endpoint"),
            ({"step_budget_s": 0}, "step_budget_s: 0 is no time"),
            ({"elastic": "perhaps"}, "elastic: 'perhaps' is neither true nor false"),
            ({"elastic_kept_bytes": -1}, "elastic_kept_bytes: -1 is no whole number of bytes"),
            ({"elastic_kept_bytes": 0.5}, "elastic_kept_bytes: 0.5 is no whole number"),
        ):
            with self.assertRaisesRegex(ValueError, said):
                parse(extra, {})
        with self.assertRaisesRegex(ValueError, "KVD_VLLM_REQUIRED: 'maybe'"):
            parse({}, {"KVD_VLLM_REQUIRED": "maybe"})


if __name__ == "__main__":
    ctest.main()
