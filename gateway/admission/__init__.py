"""Requests that wait before they are placed, while every pod that can serve them has enough to do.

`queue`, `saturation`, `priority` and `pace` are pure: who waits and goes next, when, and for how long it may last.
`control` is the thin part around them, with futures, a clock and a timer.
"""

from gateway.admission.control import Admission

__all__ = ["Admission"]
