
-- limit_wakes: when the mailboxes that a limit holds are looked at again: the members 'l:<scope>' of `due`.

-- They are woken together, as many as have tokens after this time: less than a bucket holds (50 ms).
local GATHERED_US = 20000

-- Return when the first in a scope's queue may start, in us, given the tokens that it needs; nil if only a
-- place that is given up tells.
local function next_start(limits, scope, needed, now)
  local rule, bucket = limits.rule_of(scope), limits.bucket_of(scope)
  if bucket.held > now then return bucket.held end
  if not rule then return now end
  local is_full = rule.most and limits.taken(scope) >= rule.most
  if is_full and not limits.is_first_lent(scope) then return nil end
  if not rule.tick or (not is_full and limits.is_paid_queued(scope)) then return now end
  local gathered = math.min(math.ceil(GATHERED_US / rule.tick), limits.length_of('q\n', scope))
  local wanted = math.min(math.max(needed, gathered, 1), rule.burst)
  local free = limits.tokens_of(rule, bucket)
  if free + 0.000001 >= wanted then return now end
  if bucket.reserved > 0 and rule.burst - bucket.reserved < wanted then return now + GATHERED_US end
  return now + (wanted - free) * rule.tick
end

-- Name a time in `due` for a scope, not before `earliest` (ms). `is_again` says that an earlier one is over.
local function wake_limit(limits, ready, due, scope, needed, now, is_again, earliest)
  if not limits.is_queued(scope) then
    if is_again then redis.call('ZREM', due, 'l:' .. scope) end
    return
  end
  local at = next_start(limits, scope, needed, now)
  -- A place that is given up comes sooner.
  local ms = at and math.ceil(at / 1000) or math.ceil(now / 1000) + 1000
  ms = math.max(ms, earliest or 0)
  local before = redis.call('ZSCORE', due, 'l:' .. scope)
  if before and not is_again and tonumber(before) <= ms then return end
  local head = redis.call('ZRANGE', due, 0, 0, 'WITHSCORES')
  redis.call('ZADD', due, ms, 'l:' .. scope)
  if not is_again and (not head[2] or ms < tonumber(head[2]) or tonumber(head[2]) * 1000 <= now) then
    redis.pcall('XADD', ready, '*', 'tick', '1')
  end
end

-- Write what a script has changed, behind its last step.
local function keep_limits(limits, state_key, ready, due, now)
  limits.keep_passes()
  limits.write_places()
  for scope in pairs(limits.woken) do wake_limit(limits, ready, due, scope, 1, now) end
  for scope, bucket in pairs(limits.buckets) do
    if bucket.cut then limits.dirty[scope] = true end
  end
  for scope in pairs(limits.dirty) do
    local bucket = limits.buckets[scope]
    if bucket.full <= now and bucket.reserved == 0 and bucket.held <= now then
      redis.call('HDEL', state_key, 'b\n' .. scope)
    else
      redis.call('HSET', state_key, 'b\n' .. scope,
        string.format('%.2f|%.0f|%.0f', bucket.full, bucket.reserved, bucket.held))
    end
  end
end

-- Return `limits`, with passes, queues and `keep`, which writes them, if this is the first shard. `flows` is
-- for `add_queues`.
local function open_limits(rules_key, state_key, places_key, now, is_home, flows)
  local limits = limiter(rules_key, state_key, places_key, now, is_home)
  function limits.new_flow_of() return flow_by_record() end
  if is_home then
    add_passes(limits, state_key, places_key, now)
    add_queues(limits, state_key, places_key, now, flows)
    function limits.keep(ready, due) keep_limits(limits, state_key, ready, due, now) end
  end
  return limits
end
