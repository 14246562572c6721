"""Many sequences at a time through one model, each with the bits that it would get alone. It must not import Redis.

>>> engine = Engine(model, max_batch=64)            # doctest: +SKIP
>>> engine.add(Sequence("a", request))              # doctest: +SKIP
>>> while engine.has_work:                          # doctest: +SKIP
...     for outcome in engine.step(): ...
"""

from minilab_gen.engine.engine import Engine, Phase
from minilab_gen.engine.sequence import Chosen, Ended, Outcome, Sequence

__all__ = ["Chosen", "Ended", "Engine", "Outcome", "Phase", "Sequence"]
