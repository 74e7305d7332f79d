-- What a settled command leaves.

-- Write the mark, and release the unique key, which stays to the end of its window. Both of a parked command
-- (without `message`) stay until an operator decides.
local function write_mark(left, parks, name, message)
  if left.waiting then
    local mark = try('GET', left.waiting)
    if type(mark) == 'string' and sub(mark, 1, 1) == MARK.ACCEPTED and sub(mark, 10) == name then
      call('SET', left.waiting, mark, 'PX', left.ttl)
    end
  end
  if left.unique then
    local stander = try('HGET', left.unique, left.key)
    local place, window = string.match(type(stander) == 'string' and stander or '', '^([^|]*)|(%d*)|')
    if place == message and (tonumber(window) or 0) <= now then
      call('HDEL', left.unique, left.key)
    elseif place == message then
      call('HSET', left.unique, left.key, PLACE.SETTLED .. sub(stander, #place + 1))
    end
  end
  if not left.mark then return end
  local value = keep_digest(left.mark, left.value)
  if parks then
    call('SET', left.mark, value)
  else
    call('SET', left.mark, value, 'PX', left.ttl)
  end
end

local function push_reply(left)
  if left.inbox and type(try('LPUSH', left.inbox, left.reply)) == 'number' then touched[left.inbox] = true end
end

local function write_letter(name, left, is_parked, message)
  local letter = {'r', left[1], 'e', left[2], 'm', name, 'p', is_parked}
  -- A durable command's side record is kept for a replay.
  if left.keeps then letter[9], letter[10] = 'x', message end
  letter_id = call('XADD', dead, '*', unpack(letter))
  counts.dead = counts.dead + 1
  return letter_id
end

-- The verbs, for a command that runs under this lease.

local counted = {n = 'rejected', x = 'expired', b = 'buried', c = 'cancelled'}

-- Settle a command and go on with the next. Without a next one, the whole mailbox is deleted.
local function settle(step, verb, name, activation, holder, follow, left, parts)
  local message = messages[step]
  -- Before anything is written: this may raise, and so may the next line.
  local head = not alone[name] and next_of(step, message)
  if head and (head[2] or ends_lease(step, name, activation, follow)) then trim(step, head[1]) end
  if verb == VERB.BURY then write_letter(name, left, '0', message) end
  local counter = counted[verb]
  if counter then counts[counter] = counts[counter] + 1 end
  settled = settled + 1
  if left then
    write_mark(left, left.keeps, name, message)
    push_reply(left)
    if left.outcomes then keep_outcome(left.record, left.outcomes, left.outcome) end
    if left.side and not left.keeps then call('DEL', left.side) end
    if left.caller then returning[#returning + 1] = left.caller end
    if left.follow_ups then
      for _, each in ipairs(left.follow_ups) do sending[#sending + 1] = each end
    end
  end
  if parts ~= '' then parts = string.gsub(string.gsub(parts, '|z=[^|]*', ''), '|ask=%d+', '') end  -- they are of the command that is settled
  return start(step, name, activation, holder, head, 0, '0', follow, parts)
end

local waits = {['1'] = 'retried', ['0'] = 'handed_back', [PAUSE.SNOOZE] = 'snoozed'}
local park, wait, give_back, suspend

-- Make the verbs that settle nothing. They are seldom needed, and each function costs time.
local function make_other_verbs()
  function park(step, name, left, attempt, first, parts)
    trim(step, messages[step])
    call('HSET', parked, name, write_letter(name, left, '1', messages[step]))
    release(step, STATE.STOPPED, attempt, first, parts)
    write_mark(left, true)
    push_reply(left)
    if left.outcomes then keep_outcome(left.record, left.outcomes, left.outcome) end
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

  -- Note when a mailbox starts its first command again. If that is the earliest time, a tick tells a worker.
  local function wake_at(name, at)
    local head = call('ZRANGE', due, 0, 0, 'WITHSCORES')
    call('ZADD', due, at, 'r:' .. name)
    if not head[2] or at < tonumber(head[2]) or tonumber(head[2]) <= now then
      try('XADD', ready, '*', 'tick', '1')
    end
  end

  function wait(step, name, delay, why, attempt, first, parts)
    trim(step, messages[step])
    if limits and holders[step] ~= '' then parts = string.gsub(parts, '|ask=%d+', '') end  -- its worker has read it, and lives
    local tried = why == '1' and attempt or format('%d', math.max(attempt - 1, 0))
    local at = now + tonumber(delay)
    parts = with_snooze(parts, messages[step], first, why == PAUSE.SNOOZE)
    if why == PAUSE.SNOOZE then first = '-' .. format('%.0f', at) end  -- as who wakes it writes; one of another release may not
    wake_at(name, at)
    release(step, STATE.RETRYING, tried, first, parts)
    counts[waits[why]] = counts[waits[why]] + 1
    return 'wait'
  end

  function give_back(step, counts_as_attempt, attempt, first, parts)
    trim(step, messages[step])
    if counts_as_attempt == '0' then
      attempt = format('%d', math.max(attempt - 1, 0))
      counts.handed_back = counts.handed_back + 1
    end
    return requeue(step, attempt, first, parts, messages[step])
  end

  -- Let a durable command wait for what its side record is to have; or start it again at once, if that is
  -- there. What it has stored so far is progress: the count of its attempts begins again.
  function suspend(step, name, activation, left, parts, started_ms)
    local message, side, at, awaited, wanted =
      messages[step], left.side, tonumber(left[1]), {}, tonumber(left[3])
    local names = {'m', 'cancel'}
    for i = 6, #left do awaited[i - 5], names[i - 3] = left[i], left[i] end
    local found = read_fields(side, names)
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
    parts = with_snooze(limits and string.gsub(parts, '|ask=%d+', '') or parts, message, started_ms, false, true)
    if (#awaited > 0 and wanted <= 0) or (at and at <= now) or (left[2] ~= '1' and is_wished) then
      local head = alone[name] and {message, {FIELD.IN_LONE}, STATE.LONE_HELD}
        or call('XRANGE', KEYS[before + step], message, message)[1]
      head[2] = fields_of(lone, name, head[2])
      repeated[KEYS[before + step]] = true
      return start(step, name, activation, holders[step], head, '0', first, FOLLOW.STAY,
        parts .. '|paid=' .. message)
    end
    if not alone[name] then trim(step, message) end
    local fence = string.match(runs[step], '^%d+')
    call('HSET', side, 'w', fence .. '|' .. format('%d', wanted), unpack(awaiting(missing, fence, 1)))
    for at = SLICE + 1, #missing, SLICE do call('HSET', side, unpack(awaiting(missing, fence, at))) end
    if at then wake_at(name, at) else call('ZREM', due, 'r:' .. name) end
    released[#released + 1] = activation
    set_record(name, (alone[name] and 'U|||' or 'u|||') .. message .. '|0|' .. first .. '|' .. parts)
    call('HSET', left.suspended, name, now_text .. '|' .. left[5])
    counts.suspended = (counts.suspended or 0) + 1
    return 'wait'
  end
end
local note_end = nil
if publish then
  local event_of = {
    [VERB.COMPLETE] = 'completed', [VERB.REJECT] = 'rejected', [VERB.EXPIRE] = 'expired',
    [VERB.BURY] = 'dead_lettered', [VERB.PARK] = 'parked', [VERB.CANCEL] = 'cancelled',
  }

  -- Note the event of a verb: without the ids of a command that is not signed as it should be, whose mark
  -- waits. Recovery settles without a lease of its own (an empty holder), so the command was interrupted
  -- first.
  function note_end(step, verb, name, left, record, at)
    local entry = call('XRANGE', KEYS[before + step], messages[step], messages[step])[1]
    local envelope, fence_then =
      entry and envelope_in(fields_of(lone, name, entry[2])) or '', string.match(runs[step], '^%d+')
    local attempt, worker = string.match(record, '^(%d+)|[^|]*|([^#|]*)', at)
    if holders[step] == '' and verb ~= VERB.GIVE_BACK then
      note_event('interrupted', name, envelope, attempt, fence_then, worker, '')
    end
    if verb == VERB.WAIT then
      note_event(waits[left[2]], name, envelope, attempt, fence_then, worker, left[1])
    elseif verb == VERB.GIVE_BACK then
      note_event(left[1] == '1' and 'interrupted' or 'handed_back', name, envelope, attempt, fence_then,
        worker, '')
    elseif verb == VERB.SUSPEND then
      note_event('suspended', name, envelope, attempt, fence_then, worker, left[1])
    else
      note_event(event_of[verb], name, left and left.waiting and '' or envelope, attempt, fence_then, worker, '')
    end
  end
end
