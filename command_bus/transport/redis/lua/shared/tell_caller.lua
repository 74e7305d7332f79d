-- tell_caller: tell the durable command that called another one how that ended. Uses deliver, send_out.

-- Deliver the outcome in its own shard, or let a worker relay it. `keys` has the names of the keys ready,
-- active, stats, paused, due and suspended. On its way it counts: the script that deletes it there takes that
-- off.
local function tell_caller(keys, other_box, side, text, outcome, extra)
  local target, _, caller = parse_follow_up(text)
  if target == '' then return deliver_outcome(keys, other_box, side, caller, outcome, extra) end
  redis.pcall('HINCRBY', keys.stats, 'depth', 1)
  local time = redis.call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  send_out(other_box, keys.due, keys.ready, target, now,
    {text = text, wait = 0, envelope = outcome, extra = extra})
end
