-- What the handlers of the settled commands send, with the settlement, and outcomes for the durable commands that wait for them: to this shard,
-- and for other shards into the streams that workers relay.
--
-- uses: place, postpone, arrive, deliver, agenda, send_out

local function send_all()
  local keys = {ready = ready, active = active, lone = lone, paused = any_paused and paused or nil, due = due, now = now}
  local commands, here = 0, 0
  for _, each in ipairs(sending) do
    local target, flow, name = parse_follow_up(each.text)
    if flow ~= OUTCOME then commands = commands + 1 end
    if target == '' then
      if flow ~= '1' and flow ~= OUTCOME and not queue_up then  -- the first class or tenant: a line is in use
        call('HSET', KEYS[key + 1], 'c0', '0')
        queue_up = open_line(ready, active, KEYS[key + 1], KEYS[key + 2], KEYS[key + 3])
      end
      keys.delayed, keys.later, keys.suspended = each.delayed, each.later, each.suspended
      deliver(keys, each.key, each.other, each.text, each.wait, each.envelope, each.extra, queue_up)
      if flow ~= OUTCOME then
        here = here + 1
        if publish then publish('accepted', name, each.envelope, '', '', '', each.wait > 0 and each.wait or '') end
      end
    else
      here = here + 1
      send_out(each.key, due, ready, target, now, each)
    end
  end
  try('HINCRBY', stats, 'depth', here)
  try('HINCRBY', stats, 'accepted', commands)
end

if #sending > 0 then send_all() end
