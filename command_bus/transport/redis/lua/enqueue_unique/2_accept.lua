-- How each command is accepted.

local publish = call('EXISTS', KEYS[9]) == 1 and publisher(KEYS[9], KEYS[10])
for at = head + stride, #ARGV, stride do
  if ARGV[at] ~= '1' and call('EXISTS', flows) == 0 then call('HSET', flows, 'c0', '0') end  -- the first class or tenant: a line is in use
end
local queue_up = call('EXISTS', flows) == 1 and open_line(ready, active, flows, KEYS[13], KEYS[14]) or nil
local put, spoiled, finish = mailbox_writer(ready, active, lone, first_box, names, records, held, many,
  queue_up)
local _, join, take_out, tell =
  unique_line(ready, active, unique, due, delayed, delayed_counts, first_box, names, records, put, publish,
    now, reply_ttl)

-- Return who is to be told that a command is replaced, as `tell` takes it.
local function concerned(at, key, stander)
  local told = {reply = ARGV[at + 12], keep = ARGV[at + 13], inbox = KEYS[key + 2]}
  if told.keep ~= '0' then told.mark = KEYS[key + 1] end
  if keeps_end(stander) then told.record, told.outcomes = KEYS[key + 3], KEYS[key + 4] end
  return told
end

-- Accept a command; return its admission, or the error of the whole batch.
local function accept(box, i, at, key, accepted)
  local each = {
    envelope = ARGV[at + 2], id = ARGV[at + 4], key = ARGV[at + 5], own = ARGV[at + 10], flow = ARGV[at + 14],
    delay = tonumber(ARGV[at + 7]), window = tonumber(ARGV[at + 8]), longest = tonumber(ARGV[at + 9]),
  }
  each.name = string.match(each.own, '^[^|]*|[^|]*|([^|]*)')
  local replaces = ARGV[at + 6] == MODE.LATEST and states[i] == 'waits'
  local fault = join(box, each, replaces and standers[i])
  if fault then
    if not spoiled(box, fault) and accepted == 0 then return nil, fault end
    room[box] = false
    return ADMISSION.TAKES_NOTHING
  end
  if ARGV[at + 3] ~= '' then call('SET', KEYS[key], MARK.ACCEPTED .. ARGV[at + 3] .. names[box]) end
  if replaces and take_out(box, standers[i]) then
    tell(box, each, standers[i], concerned(at, key, standers[i]))
    return ADMISSION.REPLACED
  end
  room[box], free = room[box] - 1, free - 1
  return '+'
end
