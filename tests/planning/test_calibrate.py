"""Calibrations that measure nothing are refused."""

from __future__ import annotations

import pytest

from gridwise.errors import PartitionError
from gridwise.planning.calibrate import calibrated


def test_one_worker_has_nobody_to_exchange_messages_with():
    with pytest.raises(PartitionError, match=r"`workers` .=1. must be 2 at least"):
        calibrated(workers=1)
