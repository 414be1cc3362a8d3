"""The doctor's engine without a model, as tests have it: on the device that they are run for."""

from __future__ import annotations

import os
from typing import Any

from kvd_process import DEVICE

os.environ.setdefault("VLLM_TARGET_DEVICE", "cpu")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

from kvd_vllm.doctor.rig import LAYERS as LAYERS
from kvd_vllm.doctor.rig import PAGE as PAGE
from kvd_vllm.doctor.rig import TOKENS as TOKENS
from kvd_vllm.doctor.rig import WrongBytes as WrongBytes
from kvd_vllm.doctor.rig import Rig as DoctorsRig
from kvd_vllm.doctor.rig import write_config as write_config


class Rig(DoctorsRig):
    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, device=DEVICE, **more)
