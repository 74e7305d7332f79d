-- What the handlers of the settled commands send, with the settlement: into mailboxes of this shard, and for other shards into the streams that
-- workers relay.
--
-- uses: place, postpone, deliver, agenda

local function send_all()
  local keys = {ready = ready, active = active, lone = lone, paused = paused, due = due}
  for _, each in ipairs(sending) do
    local target, flow, name = parse_follow_up(each.text)
    if target == '' then
      if flow ~= '1' and not queue_up then  -- the first class or tenant: a line is in use
        call('HSET', KEYS[key + 1], 'c0', '0')
        queue_up = open_line(ready, active, KEYS[key + 1], KEYS[key + 2], KEYS[key + 3])
      end
      keys.delayed, keys.later = each.delayed, each.later
      deliver(keys, each.key, each.text, each.wait, each.envelope, queue_up)
      if publish then publish('accepted', name, each.envelope, '', '', '', each.wait > 0 and each.wait or '') end
    else
      call('XADD', each.key, '*', 't', each.text, 'a', format('%.0f', each.wait > 0 and now + each.wait or 0), 'e', each.envelope)
      if not try('ZSCORE', due, 'o:' .. target) then set_due(due, ready, 'o:' .. target, now) end
    end
  end
  try('HINCRBY', stats, 'depth', #sending)
  try('HINCRBY', stats, 'accepted', #sending)
end

if #sending > 0 then send_all() end
