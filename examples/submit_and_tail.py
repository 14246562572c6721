"""Submit a job, read its first tokens, leave, and come back for the rest.

Needs a worker: `minilab-worker` in another terminal.
"""

from contextlib import closing

from minilab_gen import EndEvent, submit, tail

PROMPT = "Phileas Fogg"

job_id = submit(PROMPT, max_new_tokens=40, temperature=0.8, seed=7)
print(f"job {job_id}")

seen = 0
with closing(tail(job_id)) as events:  # closing gives the connection back although more would come
    for event in events:
        print(event.text, end="", flush=True)
        seen = event.number
        if seen == 10:
            break

print(" [left after token 10; the job goes on without a reader] ", end="")

for event in tail(job_id, after=seen):
    print(event.text, end="", flush=True)
    if isinstance(event, EndEvent):
        print(f"\nended: {event.reason}, {event.tokens} tokens")
