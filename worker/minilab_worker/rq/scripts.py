"""Scripts that start and end many jobs in one call, writing RQ's keys and fields as RQ's own methods write them.

``tests/worker/test_rq_fields.py`` compares every key and field with what RQ's methods leave behind. Times in registries
are the server's, so that workers whose clocks differ agree on what has expired.
"""

from __future__ import annotations

from typing import Final

_HAS_END: Final = """
local function has_end(entry)
  for i = 1, #entry[2], 2 do
    if entry[2][i] == 'end' then return true end
  end
  return false
end
"""

CLAIM: Final = (
    _HAS_END
    + """
local worker, lease_seconds, fingerprint, ttl = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local started_at, created_at, serial, limit = ARGV[5], ARGV[6], ARGV[7], tonumber(ARGV[8])
local time = redis.call('TIME')
local now, moment = tonumber(time[1]), time[1] .. string.format('.%06d', time[2])
local found, starts = {}, 0

local function is_running(id, wip)
  for _, execution in ipairs(redis.call('ZRANGE', 'rq:executions:' .. id, 0, -1)) do
    if redis.call('ZSCORE', wip, id .. ':' .. execution) then return true end
  end
  return false
end

local function is_half_written(id)
  local last = redis.pcall('XREVRANGE', 'minilab:tokens:' .. id, '+', '-', 'COUNT', 1)
  return not last.err and last[1] ~= nil and not has_end(last[1])
end

local function obstacle(id, intermediate, wip, may_continue_another)
  if not id:match('^[A-Za-z0-9_-]+$') or #id > 128 then return 'no id' end
  if not redis.call('LPOS', intermediate, id) then return 'gone' end
  local record, executions = 'rq:job:' .. id, redis.call('TYPE', 'rq:executions:' .. id).ok
  local kind = redis.call('TYPE', record).ok
  if kind == 'none' then return 'expired' end
  if kind ~= 'hash' then return 'unreadable' end
  if executions ~= 'zset' and executions ~= 'none' then return 'overwritten' end
  if is_running(id, wip) then return 'running' end
  local status, begun_by = unpack(redis.call('HMGET', record, 'status', 'minilab_fingerprint'))
  if status == 'finished' or status == 'failed' or status == 'canceled' or status == 'stopped' then return 'ended' end
  if begun_by and begun_by ~= fingerprint and not may_continue_another and is_half_written(id) then return 'begun' end
  return nil
end

local function start(id, queue, intermediate, wip, execution)
  local record, executions, member = 'rq:job:' .. id, 'rq:executions:' .. id, id .. ':' .. execution
  local own = 'rq:execution:' .. member
  redis.call('HSET', own, 'id', execution, 'job_id', id, 'created_at', created_at, 'last_heartbeat', created_at,
             'worker_name', worker)
  redis.call('EXPIRE', own, ttl)
  redis.call('ZADD', executions, now + ttl + 60, execution)
  redis.call('EXPIRE', executions, ttl + 60)
  redis.call('ZADD', wip, now + ttl, member)
  redis.call('SADD', KEYS[3], member)
  redis.call('EXPIRE', KEYS[3], ttl + 60)
  redis.call('HSET', record, 'last_heartbeat', started_at, 'status', 'started', 'started_at', started_at,
             'worker_name', worker, 'origin', queue, 'minilab_fingerprint', fingerprint)
  redis.call('HDEL', record, 'minilab_left_at')
  redis.call('PERSIST', record)
  redis.call('LREM', intermediate, 1, id)
end

local function look_at(id, q, may_continue_another)
  local queue, intermediate, wip = KEYS[1 + 3 * q], KEYS[2 + 3 * q], KEYS[3 + 3 * q]
  local why = obstacle(id, intermediate, wip, may_continue_another)
  if why then
    local fields = why == 'begun' and redis.call('HMGET', 'rq:job:' .. id, 'minilab_fingerprint', 'minilab_left_at')
    found[#found + 1] = {q, id, why, fields or {}, moment}
    return
  end
  starts = starts + 1
  local execution = serial .. string.format('%08x', starts)
  local record = redis.call('HGETALL', 'rq:job:' .. id)
  start(id, queue:sub(#'rq:queue:' + 1), intermediate, wip, execution)
  found[#found + 1] = {q, id, 'started', record, execution,
    redis.pcall('XRANGE', 'minilab:tokens:' .. id, '-', '+'),
    redis.call('EXISTS', 'minilab:cancel:' .. id),
    redis.pcall('GET', 'minilab:expired-leases:' .. id), created_at, moment}
end

local given = 9
while ARGV[given] do
  look_at(ARGV[given], tonumber(ARGV[given + 1]), ARGV[given + 2] == '1')
  given = given + 3
end
for q = 1, #KEYS / 3 - 1 do
  while #found < limit do
    local id = redis.call('LMOVE', KEYS[1 + 3 * q], KEYS[2 + 3 * q], 'LEFT', 'RIGHT')
    if not id then break end
    look_at(id, q, false)
  end
end
if starts > 0 then
  redis.call('SET', KEYS[1], 1, 'EX', lease_seconds)
  redis.call('HSET', KEYS[2], 'state', 'busy')
end
return found
"""
)
"""Take jobs from their queues and start them; answers for each what stood in the way, or ``started`` and what is known,
with the time by the server's clock.

An id goes through RQ's intermediate queue, where those stay that were not started. The worker's lease is renewed with
the start, or a worker that has just stood still would seem expired as it starts these.

KEYS: the worker's lease, record and set of executions; then for each queue: queue, intermediate queue, registry of
started jobs. ARGV: worker, seconds of its lease, fingerprint, seconds of an execution, the time as RQ writes it in
records and in executions, 24 digits that no other call has, limit; then for each job that is in an intermediate queue
already: its id, the number of its queue, 1 where it may continue another model's output."""

FINISH: Final = (
    _HAS_END
    + """
local worker, retention, ended_at, ended = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4]
local now = tonumber(redis.call('TIME')[1])
local answers, word = {}, 4
local function next_word() word = word + 1; return ARGV[word] end

local problem
local function try(...)
  local answer = redis.pcall(...)
  if type(answer) == 'table' and answer.err then problem = problem or answer end
  return answer
end

local function has_more_to_do(record, outcome)
  local field = outcome == 'finished' and 'repeats_left' or outcome == 'failed' and 'retries_left'
  local left = field and redis.call('HGET', record, field)
  return left and (tonumber(left) or 0) > 0
end

local function is_published(id)
  local last = redis.pcall('XREVRANGE', 'minilab:tokens:' .. id, '+', '-', 'COUNT', 1)
  return last.err or last[1] and has_end(last[1])
end

local function keep_result(id, kind, name, value, execution, created)
  local results = 'rq:results:' .. id
  try('XADD', results, 'MAXLEN', '~', 10, '*', 'type', kind, 'worker_name', worker, name, value,
             'execution_id', execution, 'execution_started_at', created, 'execution_ended_at', ended)
  try('EXPIRE', results, retention)
end

local function record_outcome(id, queue, outcome, value, execution, created)
  local record = 'rq:job:' .. id
  if outcome == 'finished' then
    try('HINCRBY', KEYS[1], 'successful_job_count', 1)
    try('HSET', record, 'status', 'finished', 'ended_at', ended_at)
    keep_result(id, 1, 'return_value', value, execution, created)
    try('ZADD', 'rq:finished:' .. queue, now + retention, id)
  elseif outcome == 'failed' then
    try('HINCRBY', KEYS[1], 'failed_job_count', 1)
    try('HSET', record, 'status', 'failed', 'ended_at', ended_at, 'failure_ttl', retention)
    try('ZADD', 'rq:failed:' .. queue, now + retention, id)
    keep_result(id, 2, 'exc_string', value, execution, created)
  else
    try('HSET', record, 'status', 'canceled')
    try('ZADD', 'rq:canceled:' .. queue, now, id)
  end
end

local function finish(id, queue, execution, created, seconds, outcome, value, alone)
  local record, executions, member = 'rq:job:' .. id, 'rq:executions:' .. id, id .. ':' .. execution
  if type(redis.pcall('ZSCORE', executions, execution)) ~= 'string' then return 'lost' end
  if not is_published(id) then return 'unpublished' end
  if alone ~= '1' and has_more_to_do(record, outcome) then return 'more' end
  problem = nil
  redis.call('HINCRBYFLOAT', KEYS[1], 'total_working_time', seconds)  -- where Redis takes no writes, it raises here
  record_outcome(id, queue, outcome, value, execution, created)
  try('EXPIRE', record, retention)
  try('EXPIRE', record .. ':dependents', retention)
  try('EXPIRE', 'rq:job::' .. id .. ':dependencies', retention)
  try('DEL', 'rq:execution:' .. member)
  try('ZREM', 'rq:wip:' .. queue, member)
  try('ZREM', executions, execution)
  try('SREM', KEYS[2], member)
  if problem then return problem end
  return redis.call('EXISTS', record .. ':dependents') == 1 and 'dependents' or 'done'
end

while ARGV[word + 1] do
  answers[#answers + 1] = finish(next_word(), next_word(), next_word(), next_word(), next_word(), next_word(),
                                 next_word(), next_word())
end
if redis.call('SCARD', KEYS[2]) == 0 then redis.call('HSET', KEYS[1], 'state', 'idle') end
return answers
"""
)
"""Record how jobs ended; answers for each ``done``; ``lost`` where another worker has it; ``unpublished`` where nothing
was done since its stream has no terminal entry on this server, after a failover for instance; ``dependents`` where jobs
wait for it; ``more`` where nothing was done since RQ has more to do; and an error where a key is of another type.

KEYS: the worker's record and set of executions. ARGV: worker, seconds that results stay, the time as RQ writes it in
records and in results; then for each job: id, queue, execution id, when that was created, seconds that it took, outcome
(``finished``, ``failed`` or ``canceled``), value as it stands in RQ's result, 1 to record it whatever more is to do."""
