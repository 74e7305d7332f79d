-- What a settled command leaves.

-- Release the names of a command that is settled: its unique key, which stays to the end of its window; and
-- the mark of one that waits gets a time to live.
local function release_names(step)
  if step.waiting then
    local mark = try('GET', step.waiting)
    if type(mark) == 'string' and sub(mark, 1, 1) == MARK.ACCEPTED and sub(mark, 10) == step.name then
      call('SET', step.waiting, mark, 'PX', step.ttl)
    end
  end
  if step.unique then
    local stander = try('HGET', step.unique, step.key)
    local place, window = string.match(type(stander) == 'string' and stander or '', '^([^|]*)|(%d*)|')
    if place == step.message and (tonumber(window) or 0) <= now then
      call('HDEL', step.unique, step.key)
    elseif place == step.message then
      call('HSET', step.unique, step.key, PLACE.SETTLED .. sub(stander, #place + 1))
    end
  end
end

-- Write the mark, tell the caller, and keep the outcome. The mark of a command that an operator can replay
-- stays until then.
local function tell_end(step, stays)
  if step.mark then
    local value = keep_digest(step.mark, step.value)
    if stays then
      call('SET', step.mark, value)
    else
      call('SET', step.mark, value, 'PX', step.ttl)
    end
  end
  if step.inbox and type(try('LPUSH', step.inbox, step.reply)) == 'number' then touched[step.inbox] = true end
  if step.outcomes then keep_outcome(step.record, step.outcomes, step.outcome) end
end

local function write_letter(step, is_parked)
  local letter = {'r', step.letter, 'e', step.raw, 'm', step.name, 'p', is_parked}
  -- A durable command's side record is kept for a replay.
  if step.keeps then letter[9], letter[10] = 'x', step.message end
  local id = call('XADD', dead, '*', unpack(letter))
  letter_ids[#letter_ids + 1] = id
  counts.dead = counts.dead + 1
  return id
end

-- The verbs, for a command that runs under this lease.

local counted = {
  [VERB.REJECT] = 'rejected', [VERB.EXPIRE] = 'expired', [VERB.BURY] = 'buried', [VERB.CANCEL] = 'cancelled',
}

-- Return the parts of a record without those of the command that is settled.
local function own_parts(parts)
  return (string.gsub(string.gsub(string.gsub(parts, '|z=[^|]*', ''), '|ask=%d+', ''), '|err=[^|]*', ''))
end

-- Do what the end of a command comes to, but for its state, its letter and its place in the mailbox.
local function end_command(step)
  local counter = counted[step.verb]
  if counter then counts[counter] = counts[counter] + 1 end
  settled = settled + 1
  if step.leaves then
    release_names(step)
    tell_end(step, step.keeps)
    if step.side and not step.keeps then call('DEL', step.side) end
    if step.caller then returning[#returning + 1] = step.caller end
    for _, each in ipairs(step.follow_ups or {}) do sending[#sending + 1] = each end
  end
end

-- Write the state of a step's entity, and the ends of those that were settled before its own command.
local function write_before(step)
  if step.states and step.state == '' then
    call('HDEL', step.states, step.name)
  elseif step.states then
    call('HSET', step.states, step.name, step.state)
  end
  for _, member in ipairs(step.members or {}) do
    if member.verb == VERB.BURY then write_letter(member, '0') end
    end_command(member)
  end
end

-- Settle a command and go on with the next. Without a next one, the whole mailbox is deleted.
local function settle(step, parts)
  -- Before anything is written: this may raise, and so may what follows.
  local head = not alone[step.name] and next_of(step, step.message)
  if step.states then call('HLEN', step.states) end
  local entry = find(parts, '|w=', 1, true) and call('XRANGE', step.box, step.message, step.message)[1]
  if head and (head[2] or ends_lease(step)) then trim(step, head[1]) end
  if entry then
    freed, parts =
      freed + open_lines().free_all(entry[2], step.name, step.box), several.without_lines(parts)
  end
  if step.states or step.members then write_before(step) end
  if step.verb == VERB.BURY then write_letter(step, '0') end
  end_command(step)
  return start(step, head, 0, '0', parts ~= '' and own_parts(parts) or parts)
end
