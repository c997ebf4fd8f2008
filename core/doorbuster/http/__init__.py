"""The HTTP service: a hand-written ASGI application, and the server that runs it.

``app`` decides what a path means, ``asks`` reads bodies, ``replies`` writes answers, ``views``
shows a sale. ``protocol`` and ``server`` need the extra ``http``: uvicorn, uvloop, httptools.
Nothing here re-wraps a code: what the engine answers is what the buyer reads.
"""

from doorbuster.http.app import App
from doorbuster.http.readiness import Readiness

__all__ = ["App", "Readiness"]
