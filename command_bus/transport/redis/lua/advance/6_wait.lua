-- The verbs that settle nothing.

local waits = {['1'] = 'retried', ['0'] = 'handed_back', [PAUSE.SNOOZE] = 'snoozed'}
local others = nil

-- Return the verbs, each as a function of the step, and of the attempt, first start and parts of its record.
-- They are seldom needed, and each function costs time.
local function other_verbs()
  local function park(step, attempt, first, parts)
    trim(step, step.message)
    call('HSET', parked, step.name, write_letter(step, '1'))
    release(step, STATE.STOPPED, attempt, first, parts)
    tell_end(step, true)
    return 'stop'
  end

  -- Return the parts of a record whose command is to wait: with one more snooze of it if its handler put it
  -- off, else with those that it had. They keep its first start if the record will not: `wakes`.
  local function with_snooze(parts, message, first, more, wakes)
    if parts == '' and not more then return parts end
    local count, of, truly = string.match(parts, '|z=(%d+):([%d-]+):(%d+)')
    parts = string.gsub(parts, '|z=[^|]*', '')
    if of ~= message then
      if not more and not wakes then return parts end
      count, truly = 0, string.match(first, '%d+') or '0'
    end
    return parts .. format('|z=%.0f:%s:%s:%d', count + (more and 1 or 0), message, truly, more and 1 or 0)
  end

  -- Return the parts of a record with the error of the attempt that a step ends.
  local function with_error(parts, step)
    return string.gsub(parts, '|err=[^|]*', '') .. format('|err=%s:%s:%s', step.message, now_text, step.error)
  end

  -- Note when a mailbox starts its first command again. If that is the earliest time, a tick tells a worker.
  local function wake_at(name, at)
    local head = call('ZRANGE', due, 0, 0, 'WITHSCORES')
    call('ZADD', due, at, 'r:' .. name)
    if not head[2] or at < tonumber(head[2]) or tonumber(head[2]) <= now then
      try('XADD', ready, '*', 'tick', '1')
    end
  end

  local function wait(step, attempt, first, parts)
    local why, name = step.why, step.name
    trim(step, step.message)
    -- Its worker has read it, and lives.
    if limits and step.holder ~= '' then parts = string.gsub(parts, '|ask=%d+', '') end
    local tried = why == '1' and attempt or format('%d', math.max(attempt - 1, 0))
    local at = now + tonumber(step.delay)
    parts = with_snooze(parts, step.message, first, why == PAUSE.SNOOZE)
    if step.error ~= '' then parts = with_error(parts, step) end
    -- As who wakes it writes; one of another release may not.
    if why == PAUSE.SNOOZE then first = '-' .. format('%.0f', at) end
    wake_at(name, at)
    release(step, STATE.RETRYING, tried, first, parts)
    counts[waits[why]] = counts[waits[why]] + 1
    return 'wait'
  end

  local function give_back(step, attempt, first, parts)
    trim(step, step.message)
    if step.counts == '0' or step.is_shared then
      attempt = format('%d', math.max(attempt - 1, 0))
      counts.handed_back = counts.handed_back + 1
    end
    if step.counts ~= '0' then
      step.error = 'Interrupted: its worker was lost, or stopped before it had ended'
      parts = with_error(parts, step)
    end
    return requeue(step, attempt, first, parts, step.message)
  end

  local SLICE = 1000  -- fields of one call: `unpack` takes 8,000 values

  -- Return fields of a hash.
  local function read_fields(hash, names)
    local found = {}
    for at = 1, #names, SLICE do
      local values = call('HMGET', hash, unpack(names, at, math.min(at + SLICE - 1, #names)))
      for i = 1, #values do found[at + i - 1] = values[i] end
    end
    return found
  end

  -- Return what the side record says of a slice of the fields that are awaited. A signal that is has room of
  -- its own from then on.
  local function awaiting(fields, fence, at)
    local waits = {}
    for i = at, math.min(at + SLICE - 1, #fields) do
      local signal = string.match(fields[i], '^g:(.*)#')
      waits[#waits + 1], waits[#waits + 2] = 'a:' .. fields[i], fence
      if signal then waits[#waits + 1], waits[#waits + 2] = 'ga:' .. signal, '1' end
    end
    return waits
  end

  -- Let a durable command wait for what its side record is to have; or start it again at once, if that is
  -- there. What it has stored so far is progress: the count of its attempts begins again.
  local function suspend(step, _, started_ms, parts)
    local name, message, side, at = step.name, step.message, step.side, tonumber(step.ends)
    local awaited, wanted, fields = step.awaited, step.wanted, {'m', 'cancel'}
    for i = 1, #awaited do fields[i + 2] = awaited[i] end
    local found = read_fields(side, fields)
    local is_of, is_wished = found[1], found[2]
    -- Nothing was stored yet, or by another command with this id; what was brought early stays.
    if is_of ~= message then
      call(is_of and 'DEL' or 'PERSIST', side)
      call('HSET', side, 'm', message)
      if is_of then found, is_wished = {}, false end
    end
    local missing = {}
    for i = 1, #awaited do
      if found[i + 2] then wanted = wanted - 1 else missing[#missing + 1] = awaited[i] end
    end
    local first = '-' .. now_text
    if limits then parts = string.gsub(parts, '|ask=%d+', '') end
    parts = with_snooze(parts, message, started_ms, false, true)
    if (#awaited > 0 and wanted <= 0) or (at and at <= now) or (not step.is_cancelled and is_wished) then
      local head = alone[name] and {message, {FIELD.IN_LONE}, STATE.LONE_HELD}
        or call('XRANGE', step.box, message, message)[1]
      head[2] = fields_of(lone, name, head[2])
      repeated[step.box], step.follow = true, FOLLOW.STAY
      return start(step, head, '0', first, parts .. '|paid=' .. message)
    end
    if not alone[name] then trim(step, message) end
    local fence = string.match(step.run, '^%d+')
    call('HSET', side, 'w', fence .. '|' .. format('%d', wanted), unpack(awaiting(missing, fence, 1)))
    for from = SLICE + 1, #missing, SLICE do call('HSET', side, unpack(awaiting(missing, fence, from))) end
    if at then wake_at(name, at) else call('ZREM', due, 'r:' .. name) end
    released[#released + 1] = step.activation
    set_record(name, (alone[name] and STATE.LONE_SUSPENDED or STATE.SUSPENDED) .. '|||' .. message .. '|0|'
      .. first .. '|' .. parts)
    call('HSET', step.suspended, name, now_text .. '|' .. step.command_id)
    counts.suspended = (counts.suspended or 0) + 1
    return 'wait'
  end

  return {[VERB.PARK] = park, [VERB.WAIT] = wait, [VERB.SUSPEND] = suspend, [VERB.GIVE_BACK] = give_back}
end
