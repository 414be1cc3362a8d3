"""kvd from Python: memory of kvd's pool as numpy arrays and tensors, and requests that kvd schedules.

    import kvd_client

    with kvd_client.Client() as client, client.allocate(64 << 20) as region:
        array = region.numpy("float16")
        …
        del array  # a view keeps the region

Needs neither numpy nor torch. `python -m kvd_client status` looks at a daemon.
"""

from .cache import Cache, Change, Changes, Hint, Piece, TicketState
from .client import (
    Client, Group, Memory, SessionInfo, Shape, Stats, Transport, held_mappings,
)  # fmt: skip
from .elastic import MOST_NEEDS, ElasticRegion, Need
from .errors import (
    DeadlineExceeded, DeviceError, Draining, Infeasible, Internal, InvalidArgument, KvdError,
    NotFound, OutOfMemory, PeerGone, PermissionDenied, QuotaExceeded, StaleSession, Status, Unavailable,
    Unsupported, WouldBlock,
)  # fmt: skip
from .region import Region
from .requests import (
    Direction, Hold, HoldReason, Place, Placement, Report, Request, Run, RunFlag, Step,
)  # fmt: skip
from .schedule import Decision, ScheduleBatch, ScheduleState, slo_class

__version__ = "0.1.0"

__all__ = [
    "MOST_NEEDS", "Cache", "Change", "Changes", "Client", "DeadlineExceeded", "Decision", "DeviceError", "Direction", "Draining",
    "ElasticRegion", "Group", "Hint", "Hold", "HoldReason", "Infeasible", "Internal", "InvalidArgument",
    "KvdError", "Memory", "Need", "NotFound", "OutOfMemory", "PeerGone", "PermissionDenied", "Piece", "Place",
    "Placement", "QuotaExceeded", "Region", "Report", "Request", "Run", "RunFlag", "ScheduleBatch",
    "ScheduleState", "SessionInfo", "Shape", "StaleSession", "Stats", "Status", "Step", "TicketState",
    "Transport", "Unavailable", "Unsupported", "WouldBlock", "held_mappings", "slo_class",
]  # fmt: skip
