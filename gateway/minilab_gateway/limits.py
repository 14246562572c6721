"""What a key may ask in a minute, and at once. All gateways on one Redis count together.

A key has one record in Redis. Its tokens and its jobs are counted by the jobs' own streams, which any gateway can read:
a gateway that is killed keeps nothing back, and answers that no client waits for count, too. (Packages for limits count
requests in windows; what a job uses, and whether it still runs, they cannot know.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import redis
from rq.job import Job

from minilab_gateway.api_keys import ApiKey
from minilab_gateway.errors import RETRY_SECONDS, ApiError
from minilab_gen.protocol import keys

_MINUTE: Final = 60.0

_SUBMITTING: Final = 30
"""Seconds in which a job that was counted must be in its queue; after them it counts no more."""

_STAND_BACK: Final = 10
"""Seconds for which batches begin nothing after a request of their key was refused: its client tries again in 2."""

HEADERS: Final = tuple(
    f"x-ratelimit-{figure}-{what}" for what in ("requests", "tokens") for figure in ("limit", "remaining", "reset")
)
"""The headers of OpenAI's API that say how much of a limit is left."""

_NOW: Final = "local t = redis.call('TIME') local now = t[1] + t[2] / 1000000 local record = KEYS[1]\n"

_COUNT_REQUEST: Final = f"""{_NOW}
local most = tonumber(ARGV[1])
local left = tonumber(redis.call('HGET', record, 'requests') or most)
local at = tonumber(redis.call('HGET', record, 'requests_at') or now)
left = math.min(most, left + math.max(0, now - at) * most / 60)
local taken = left >= 1
if taken then left = left - 1 end
redis.call('HSET', record, 'requests', string.format('%.6f', left), 'requests_at', string.format('%.6f', now))
redis.call('EXPIRE', record, ARGV[2])
return {{taken and 1 or 0, string.format('%.6f', left)}}
"""
"""Each request is given back as its share of the minute passes."""

_RESERVE: Final = f"""{_NOW}
local most_tokens, most_jobs, prompts, submitting = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local job_prefix, stream_prefix, ttl = ARGV[5], ARGV[6], ARGV[7]
local to_make, stand_back = tonumber(ARGV[8]), tonumber(ARGV[9])
local has_ended = {{finished = true, failed = true, stopped = true, canceled = true}}
local fields, known = redis.call('HGETALL', record), {{}}
for i = 1, #fields, 2 do known[fields[i]] = fields[i + 1] end

local made, running, to_come = 0, 0, 0
for field, value in pairs(known) do
  local id = string.match(field, '^job:(.*)$')
  if id then
    local counted, since, most_new = string.match(value, '^(%d+) (%S+) ?(%d*)$')
    local tokens, ended = tonumber(counted), false
    local last = redis.pcall('XREVRANGE', stream_prefix .. id, '+', '-', 'COUNT', 1)
    if last[1] then
      tokens = tonumber(string.match(last[1][1], '^%d+'))
      for i = 1, #last[1][2], 2 do ended = ended or last[1][2][i] == 'end' end
      if ended then tokens = tokens - 1 end
    else
      local status = redis.call('HGET', job_prefix .. id, 'status')
      if status then ended = has_ended[status] else ended = now - tonumber(since) > submitting end
      if ended and not status then known[field] = nil end
    end
    made = made + math.max(0, tokens - tonumber(counted))
    if ended then
      redis.call('HDEL', record, field)
    else
      running = running + 1
      to_come = to_come + math.max(0, (tonumber(most_new) or 0) - tokens)
      if tokens > tonumber(counted) then
        redis.call('HSET', record, field, tokens .. ' ' .. since .. ' ' .. most_new)
      end
    end
  end
end

local is_new, refused, left = not known['job:' .. ARGV[10]], '', 0
local jobs_wanted, jobs_bound, tokens_wanted, tokens_bound = #ARGV - 9, tonumber(most_jobs), 0, 0
if most_tokens ~= '' then
  local most, at = tonumber(most_tokens), tonumber(known['tokens_at'] or now)
  left = math.min(most, tonumber(known['tokens'] or most) + math.max(0, now - at) * most / 60 - made)
end
if to_make then
  if jobs_bound then jobs_bound = math.max(1, jobs_bound - 1) end
  if to_come > 0 then tokens_wanted = to_come + prompts + to_make end
  if most_tokens ~= '' then tokens_bound = tonumber(most_tokens) / 2 end
  if now - tonumber(known['refused_at'] or 0) < stand_back then refused = 'later' end
end
if refused == '' and most_tokens ~= '' and left - tokens_wanted <= tokens_bound then refused = 'tokens' end
if refused == '' and jobs_bound and running + jobs_wanted > jobs_bound then refused = 'jobs' end
if not is_new then refused = '' end
if refused ~= '' and not to_make then redis.call('HSET', record, 'refused_at', string.format('%.6f', now)) end
if refused == '' and is_new then
  left = left - prompts
  local value = string.format('0 %.6f ', now) .. ARGV[8]
  for i = 10, #ARGV do redis.call('HSET', record, 'job:' .. ARGV[i], value) end
end
if most_tokens ~= '' then
  redis.call('HSET', record, 'tokens', string.format('%.6f', left), 'tokens_at', string.format('%.6f', now))
end
redis.call('EXPIRE', record, ttl)
return {{refused, string.format('%.6f', left), running, is_new and 1 or 0}}
"""
"""Count what the jobs so far have made, then either count these jobs, too, or refuse them.

With ARGV[8], the most tokens that it makes, the job is of a batch, which leaves room for requests: one of the jobs,
half of the tokens also when all jobs of batches have made what they may (but for a job that has none beside it), and
everything for a while after a request was refused. A stream of Redis is read by a name that is made here: RQ, too,
needs a Redis without clusters.
"""

_RELEASE: Final = """
for i = 2, #ARGV do redis.call('HDEL', KEYS[1], 'job:' .. ARGV[i]) end
local left = redis.call('HGET', KEYS[1], 'tokens')
if left then redis.call('HSET', KEYS[1], 'tokens', string.format('%.6f', left + ARGV[1])) end
"""


class Limits:
    """The requests, tokens and jobs of all keys. Its calls block, with one round trip each."""

    def __init__(self, connection: redis.Redis) -> None:
        self._count_request, self._reserve, self._release = (
            connection.register_script(script) for script in (_COUNT_REQUEST, _RESERVE, _RELEASE)
        )

    def count_request(self, key: ApiKey) -> tuple[bool, float]:
        """Whether the key may send one now, and how many it has left. Only for a key with that limit."""
        arguments: list[Any] = [key.requests_per_minute, keys.RETENTION]
        found: Any = self._count_request([keys.limits(key.name)], arguments)
        return bool(found[0]), float(found[1])

    def reserve(
        self, key: ApiKey, job_ids: Sequence[str], prompts: int, to_make: int | None = None
    ) -> tuple[str, float, int, bool]:
        """Count jobs and the tokens of their prompts. ``to_make``, for one of a batch: the most tokens that it makes.

        Returns what forbids it, ``tokens``, ``jobs``, ``later`` (for batches) or nothing; the tokens that are left,
        the jobs that were there, and whether these are new.
        """
        arguments: list[Any] = ["" if limit is None else limit for limit in (key.tokens_per_minute, key.jobs)]
        arguments += [prompts, _SUBMITTING, Job.key_for(""), keys.token_stream(""), keys.RETENTION]
        arguments += ["" if to_make is None else to_make, _STAND_BACK, *job_ids]
        found: Any = self._reserve([keys.limits(key.name)], arguments)
        return found[0].decode(), float(found[1]), int(found[2]), bool(found[3])

    def release(self, key: ApiKey, job_ids: Sequence[str], prompts: int) -> None:
        """Count them no more: they did not come into the queue."""
        self._release([keys.limits(key.name)], [prompts, *job_ids])


class Allowance:
    """What one request may use of its key's limits, and the headers that say so. Without limits nothing is asked."""

    def __init__(self, key: ApiKey, limits: Limits) -> None:
        self._key, self._limits = key, limits
        self._reserved: tuple[Sequence[str], int] | None = None
        self.headers: dict[str, str] = {}

    def count_request(self) -> None:
        """Raises ApiError where the minute's requests are used up."""
        key, most = self._key, self._key.requests_per_minute
        if most is None:
            return
        is_free, left = self._limits.count_request(key)
        self._tell("requests", most, left)
        if not is_free:
            message = f"the key {key.name} may send {most} requests a minute"
            raise self._refusal(message, "rate_limit_exceeded", (1 - left) * _MINUTE / most)

    def reserve(self, job_ids: Sequence[str], prompts: int) -> None:
        """Count new jobs, with so many tokens in their prompts together.

        Raises ApiError where the minute's tokens are used up, or so many jobs at once are too many.
        """
        key = self._key
        if key.tokens_per_minute is None and key.jobs is None:
            return
        refused, left, running, is_new = self._limits.reserve(key, job_ids, prompts)
        if key.tokens_per_minute is not None:
            self._tell("tokens", key.tokens_per_minute, left)
            if refused == "tokens":
                message = f"the key {key.name} may use {key.tokens_per_minute} tokens a minute, and has used them up"
                raise self._refusal(message, "rate_limit_exceeded", (1 - left) * _MINUTE / key.tokens_per_minute)
        if refused:
            message = f"the key {key.name} may have {key.jobs} jobs at once, got {running} and {len(job_ids)} more"
            raise self._refusal(message, "too_many_jobs", RETRY_SECONDS)
        if is_new:
            self._reserved = job_ids, prompts

    def release(self) -> None:
        """Count the jobs no more, since their queue has refused them."""
        if self._reserved is not None:
            self._limits.release(self._key, *self._reserved)
            self._reserved = None

    def _tell(self, what: str, most: int, left: float) -> None:
        figures = (str(most), str(max(0, math.floor(left))), _duration((most - left) * _MINUTE / most))
        self.headers |= {
            f"x-ratelimit-{name}-{what}": figure
            for name, figure in zip(("limit", "remaining", "reset"), figures, strict=True)
        }

    def _refusal(self, message: str, code: str, seconds: float) -> ApiError:
        return ApiError(429, message, code=code, retry_after=seconds, headers=self.headers)


def _duration(seconds: float) -> str:
    """As OpenAI writes it: ``20ms``, ``1.5s``, ``6m0s``."""
    if seconds < 1:
        return f"{max(0, math.ceil(1000 * seconds))}ms"
    minutes, rest = divmod(seconds, 60)
    return f"{int(minutes)}m{math.ceil(rest)}s" if minutes else f"{rest:.3f}".rstrip("0").rstrip(".") + "s"
