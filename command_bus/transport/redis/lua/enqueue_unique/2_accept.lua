-- How each command is accepted.

-- Return = or ! if a command id is remembered, w if its mark is a key of another type.
local function known(mark, digest)
  local value = redis.pcall('GET', mark)
  if type(value) == 'table' then return 'w' end
  return value and (sub(value, 2, 9) == digest and '=' or '!')
end

-- Return whether this user may not take commands out of a mailbox. No entry has the id 0-0.
local function forbidden(box)
  local answer = redis.pcall('XDEL', KEYS[first_box + box], '0-0')
  return type(answer) == 'table' and not string.find(answer.err, 'WRONGTYPE', 1, true)
end

-- Return whether a command is folded into the one that stands for its key.
local function folds(i, mode)
  return mode ~= 'l' and (windows[i] or states[i] == 'waits' or (mode == 'f' and states[i] == 'started'))
end

local publish = call('EXISTS', KEYS[9]) == 1 and publisher(KEYS[9], KEYS[10])
for at = head + stride, #ARGV, stride do
  if ARGV[at] ~= '1' and call('EXISTS', flows) == 0 then call('HSET', flows, 'c0', '0') end  -- the first class or tenant: a line is in use
end
local queue_up = call('EXISTS', flows) == 1 and open_line(ready, active, flows, KEYS[13], KEYS[14]) or nil
local put, spoiled, finish = mailbox_writer(ready, active, lone, first_box, names, records, held, many, queue_up)

-- Take the one that a command replaces out of line; return whether it was there.
local function take_out(box, stander)
  local place, _, _, _, _, _, id = parse_stander(stander)
  if place == 'd' then
    if call('HDEL', delayed, id) == 0 then return false end
    call('ZREM', due, 'd:' .. id)
    count_down_delayed(delayed_counts, names[box])
    return true
  end
  if call('XDEL', KEYS[first_box + box], place) == 0 then return false end
  if records[box] and string.find(records[box], '^[hH]|') then
    records[box] = changed_behind(records[box])
    call('HSET', active, names[box], records[box])
  end
  return true
end

-- Tell the caller of one that was replaced, and later callers who ask by its id.
local function tell(box, stander, mark, inbox, reply, keep, names_then)
  local value = keep ~= '0' and redis.pcall('GET', mark)
  if type(value) == 'string' and sub(value, 1, 1) == 'q' and sub(value, 10) == names[box] then
    call('SET', mark, 'd' .. sub(value, 2, 9) .. reply, 'PX', keep)
  end
  local _, _, _, _, waits = parse_stander(stander)
  if waits ~= '' and type(redis.pcall('LPUSH', inbox, reply)) == 'number' then redis.pcall('PEXPIRE', inbox, reply_ttl) end
  if publish then publish('superseded', names[box], names_then, '', '', '', '') end
end

-- Accept a command; return its admission, or the error of the whole batch.
local function accept(box, i, at, key, accepted)
  local envelope, id, delay, window, longest = ARGV[at + 2], ARGV[at + 4], tonumber(ARGV[at + 7]), tonumber(ARGV[at + 8]), tonumber(ARGV[at + 9])
  local replaces = ARGV[at + 6] == 'l' and states[i] == 'waits'
  local most = longest > 0 and (replaces and tonumber((select(3, parse_stander(standers[i])))) or now + longest)
  if most then delay = math.max(0, math.min(delay, most - now)) end
  local fault, place
  if delay > 0 then
    local entry = '\193e:' .. #envelope .. ':' .. envelope .. 'u:' .. #ARGV[at + 5] .. ':' .. ARGV[at + 5]
    fault, place = postpone(ready, due, delayed, delayed_counts, KEYS[first_box + box], names[box], id, delay, with_flow(entry, ARGV[at + 15])), 'd'
  else
    fault, place = put(box, envelope, ARGV[at + 15])
  end
  if fault then
    if not spoiled(box, fault) and accepted == 0 then return nil, fault end
    room[box] = false
    return 'w'
  end
  if ARGV[at + 3] ~= '' then call('SET', KEYS[key], 'q' .. ARGV[at + 3] .. names[box]) end
  local until_ms = window > 0 and format('%.0f', now + window) or ''
  local value = place .. '|' .. until_ms .. '|' .. (most and format('%.0f', most) or '') .. '|' .. ARGV[at + 10]
  redis.pcall('HSET', unique, ARGV[at + 5], value)
  if publish then publish('accepted', names[box], envelope, '', '', '', delay > 0 and format('%.0f', delay) or '') end
  if replaces and take_out(box, standers[i]) then
    tell(box, standers[i], KEYS[key + 1], KEYS[key + 2], ARGV[at + 12], ARGV[at + 13], ARGV[at + 14])
    return 'r'
  end
  room[box], free = room[box] - 1, free - 1
  return '+'
end
