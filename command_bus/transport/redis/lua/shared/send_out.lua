-- send_out: write a follow-up for another shard into the stream from which workers relay it. Uses agenda,
-- postpone.

-- Write it, and see to it that a worker looks. `follow_up` has the fields text, wait, envelope and extra (see
-- shared/deliver.lua).
local function send_out(out, due, ready, target, now, follow_up)
  local wait = follow_up.wait
  local moment = moment_of(wait)
  local at = string.format('%.0f', moment > now and moment or 0)
  redis.call('XADD', out, '*', 't', follow_up.text, 'a', at, 'e', follow_up.envelope, 'x', follow_up.extra)
  if not redis.pcall('ZSCORE', due, 'o:' .. target) then set_due(due, ready, 'o:' .. target, now) end
end
