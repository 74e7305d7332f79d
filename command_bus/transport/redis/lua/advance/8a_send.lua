-- What the handlers of the settled commands send, with the settlement, and outcomes for the durable commands
-- that wait for them: to this shard, and for other shards into the streams that workers relay.
--
-- uses: alone, put_one, delayed, postpone, arrive, deliver, agenda, send_out

local function send_all(keys)
  local commands = 0
  for _, each in ipairs(sending) do
    local target, flow, name, id = parse_follow_up(each.text)
    if flow ~= OUTCOME then commands = commands + 1 end
    if target == '' then
      if flow ~= '1' and not queue_up then  -- the first class or tenant: a line is in use
        call('HSET', KEYS[key + 1], 'c0', '0')
        queue_up = open_line(ready, active, KEYS[key + 1], KEYS[key + 2], KEYS[key + 3])
      end
      keys.delayed, keys.later = each.delayed, each.later
      local at = flow ~= OUTCOME and waits_until(due, each.delayed, each.later, name, id, each.wait) or nil
      deliver(keys, each.key, each.other, each.text, at, each.envelope, each.extra, queue_up)
      if publish then
        publish('accepted', name, parts_sent(each.envelope), '', '', '',
          at and at > now and format('%.0f', at - now) or '')
      end
    else
      send_out(each.key, due, ready, target, now, each)
    end
  end
  try('HINCRBY', stats, 'depth', #sending)
  if commands > 0 then try('HINCRBY', stats, 'accepted', commands) end
end

if #sending > 0 or #returning > 0 then
  local keys = {ready = ready, active = active, lone = lone, paused = any_paused and paused or nil, due = due,
    now = now}
  for _, each in ipairs(returning) do
    local box, side, suspended, called, child, outcome = unpack(each)
    keys.suspended = suspended
    arrive_outcome(keys, side, called, child, outcome, sub(box, prefix + 1), box)
  end
  if #sending > 0 then send_all(keys) end
end
