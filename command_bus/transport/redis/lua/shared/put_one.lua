-- put_one: put one command into its mailbox, behind all that stand there. Uses record, newer, lone, alone,
-- holds, line.

-- Return the error if the mailbox takes nothing; then nothing was changed. `keys` has the names of the keys
-- ready, active, lone and paused, which is nil where nothing is paused, and `now` in ms. `queue_up` is the
-- line, nil where none is in use; `flow` what the command waits in there.
local function put_one(keys, name, box, envelope, flow, queue_up)
  local ready, active, lone = keys.ready, keys.active, keys.lone
  local record, held, queued = redis.call('HGET', active, name), (holds_of(keys.paused, name)), nil
  if not record and not held and not queue_up and #envelope <= LONE_BYTES and redis.call('EXISTS', box) == 0
    and type(redis.pcall('HSET', lone, name, envelope)) == 'number' then
    local activation = redis.pcall('XADD', ready, '*', FIELD.ENVELOPE, name)
    if type(activation) == 'string' then
      local alone = tells_time(activation, keys.now)
      queued = pack_record(alone and STATE.LONE or STATE.READY, activation, '0', '0')
      if alone then return redis.call('HSET', active, name, queued) and nil end
    end
  end
  local lined_up, fault = line_up(active, box, name, record)
  local added = fault or redis.pcall('XADD', box, '*', FIELD.ENVELOPE, envelope)
  if type(added) == 'table' then return added end
  if record then
    if queue_up then
      redis.call('HSET', active, name, queue_up.noted(lined_up, name, flow, added, box))
    end
    return nil
  end
  local parts = queue_up and queue_up.parts_of(flow)
  redis.call('HSET', active, name,
    queued or (held and pack_record(STATE.STOPPED, '', '0', '0', parts)
    or queue(ready, name, '0', '0', parts)))
end
