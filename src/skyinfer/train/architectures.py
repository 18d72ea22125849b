"""What training does otherwise for one architecture than for another: a row for each. No torch.

fitting.py has the table of networks and their batches, which need it.
"""

from __future__ import annotations

from typing import NamedTuple


class Architecture(NamedTuple):
    """Traits of an architecture.

    Attributes:
        is_laya: its checkpoints are those of the Laya runtime: with the parts that only that runtime wants, and with a
            prompt in which question, options and state are one text.
        reads_state_once: a batch has a state once for all that is asked about it, so that comes together and sees one
            view of it.
        has_option_order: the options of a question have an order, which may be varied.
        head_is_part: `head_max_len` is a part of `max_len`; else it is the length of a sequence of its own.
    """

    is_laya: bool
    reads_state_once: bool
    has_option_order: bool
    head_is_part: bool


DEFAULT = "s1"

# by the core's names
ARCHITECTURES = {
    "s1": Architecture(is_laya=True, reads_state_once=False, has_option_order=True, head_is_part=True),
    "s2": Architecture(is_laya=False, reads_state_once=True, has_option_order=False, head_is_part=False),
}
