"""Twenty jobs at once, all read as they come, in one event loop.

Needs a worker: `minilab-worker` in another terminal. It runs them in one batch, and each answer is the one that its
seed gives alone.
"""

import asyncio

from minilab_gen import EndEvent, submit, tail_async

PROMPT = "Le capitaine Nemo"


async def answer(seed: int) -> None:
    """One job, from its submission to its end."""
    job_id = await asyncio.to_thread(submit, PROMPT, max_new_tokens=30, temperature=0.9, seed=seed)
    text = PROMPT
    async for event in tail_async(job_id):
        text += event.text
        if isinstance(event, EndEvent):
            print(f"{seed:2}  {event.reason}  {' '.join(text.split())}")


async def main() -> None:
    """All of them; the first to end is printed first."""
    await asyncio.gather(*(answer(seed) for seed in range(20)))


asyncio.run(main())
