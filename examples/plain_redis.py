"""The same without a line of MiniLab Gen, as any language could do it: RQ takes the job, XREAD gives the tokens.

Needs a worker, and MINILAB_REDIS_URL. `minilab-worker redis status` shows the socket of a private server; its address
is then unix:///.../redis.sock. What the fields mean: docs/protocol.md.
"""

import os

from redis import Redis
from rq import Queue
from rq.serializers import JSONSerializer

REQUEST = {"prompt": [1043, 352], "max_new_tokens": 40, "temperature": 0.8, "seed": 7}  # "Phileas Fogg" as token ids

with Redis.from_url(os.environ["MINILAB_REDIS_URL"]) as connection:
    queue = Queue("minilab.base", connection=connection, serializer=JSONSerializer)
    job = queue.enqueue("minilab_gen.tasks.generate", REQUEST)

    seen, end = b"0-0", None  # the last entry's id is all that a reader has to remember
    while end is None:
        for _, entries in connection.xread({f"minilab:tokens:{job.id}": seen}, block=2000):
            for entry_id, fields in entries:
                seen, end = entry_id, fields.get(b"end")
                print(fields.get(b"text", b"").decode(), end="", flush=True)
    print(f"\nended: {end.decode()}")
