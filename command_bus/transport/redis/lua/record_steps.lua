-- record_steps: store what durable commands that run have come to, and send the commands that they call.
--
-- uses: memory_limit, record, newer, lone, holds
-- uses: open_line(line_flow, line_runs, line_turns, line_served, line)
-- uses: alone, admission, delayed, postpone, agenda, send_out, events
--
-- KEYS[1]   ready     stream of activations
-- KEYS[2]   active    hash: mailbox name -> record (see shared/record.lua)
-- KEYS[3]   lone      hash: mailbox name -> envelope (see shared/lone.lua)
-- KEYS[4]   paused    hash: scope -> mode|since in ms|why (see shared/holds.lua)
-- KEYS[5]   due       sorted set of what becomes due, by ms
-- KEYS[6]   delayed   hash: command id -> mailbox name, newline, entry (see shared/entry_text.lua)
-- KEYS[7]   later     hash: mailbox name -> number of delayed commands (see shared/delayed.lua)
-- KEYS[8]   stats     hash of counters
-- KEYS[9]   watched   hash: entity type -> number of events to keep (see shared/events.lua)
-- KEYS[10]  events    stream of what happened to commands of watched types
-- KEYS[11]  flows     hash: what classes and shares have used (see shared/line.lua); this and the next two
--                     may not exist
-- KEYS[12]  turns     sorted set of flows, by their virtual time
-- KEYS[13]  line      sorted set of the places of entities that wait
-- KEYS[14…] the mailboxes that commands are sent to; the side record of each item (see shared/arrive.lua);
--           for each command its mark, or the stream of those for another shard
-- ARGV[1]   group     of consumers
-- ARGV[2]   prefix    length of the mailbox keys' prefix: what follows it is the mailbox's name
-- ARGV[3]   boxes     how many mailboxes commands are sent to
-- ARGV[4]   items     how many
-- ARGV[5…]  the mailbox of each item; for each item '|activation|fence|message|' of its start, the message,
--           '1' if the count of its attempts begins again, 'd' if its record lives for a day, else '0', a
--           letter for each field, the names of the fields, and their values; for each command the number of
--           its mailbox, or its text if it is for another shard (see shared/deliver.lua), its flow and delay
--           in ms (below zero the moment itself) with a bar between them (empty: the normal class, at once),
--           its id, envelope and mark. The letters: f a value; c a value that goes with the next command; p a
--           value that takes the place of the last; t a time, the value is ms from now; l an entry of the
--           log, its name is 'fence|number'
--
-- returns for each item nil if its lease is lost: nothing was changed; else for each field false if it is
-- stored now, the ms of a time, or what
--         was there already: that stays, and no command is sent for it
--
-- Once the first field is written nothing fails.

local ready, active, lone, due = KEYS[1], KEYS[2], KEYS[3], KEYS[5]
local call, byte, sub, find, match, format =
  redis.call, string.byte, string.sub, string.find, string.match, string.format
local HELD, HELD_AND_CHANGED, LONE_HELD =
  byte(STATE.HELD), byte(STATE.HELD_AND_CHANGED), byte(STATE.LONE_HELD)
local A_DAY, LOGGED, FIRST_BOX = 86400000, 100, 13
pass_memory_limit(ready, ARGV[1])
local time = call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local boxes, items = tonumber(ARGV[3]), tonumber(ARGV[4])
local first_side = FIRST_BOX + boxes
local arg, command, sent = 4 + items, 0, {}  -- `sent` has the numbers of the commands that are sent
local held, publish, queue_up = {}, nil, nil
if call('EXISTS', KEYS[4], KEYS[9], KEYS[11]) > 0 then
  publish = call('EXISTS', KEYS[9]) == 1 and publisher(KEYS[9], KEYS[10])
  queue_up = call('EXISTS', KEYS[11]) == 1 and open_line(ready, active, KEYS[11], KEYS[12], KEYS[13])
  for box = 1, boxes do held[box] = holds_of(KEYS[4], sub(KEYS[FIRST_BOX + box], ARGV[2] + 1)) end
end

-- Note in a record, by its attempt, that the count of attempts begins again, and by its first start, below
-- zero, that its command has begun: its deadline no longer counts, also where a start that took no attempt is
-- all that it had.
local function note(name, record, progressed, begun)
  local head, attempt, first, tail = match(record, '^([^|]*|[^|]*|[^|]*|[^|]*|)(%d+)|(-?%d+)(|.*)$')
  if not head then return end
  if begun and byte(first) ~= 45 then first = '-' .. first end  -- 45 is the minus
  call('HSET', active, name, head .. (progressed and '1' or attempt) .. '|' .. first .. tail)
end

-- Append an entry to the log of a command: it keeps the last ones. One that is repeated, by its fence and
-- number, is there already.
local function append(side, field, value)
  local fence, number = match(field, '^(%d+)|(%d+)$')
  local last_fence, last = match(call('HGET', side, 'lq') or '', '^(%d+)|(%d+)$')
  if fence == last_fence and tonumber(number) <= tonumber(last) then return end
  local at = call('HINCRBY', side, 'ln', 1)
  call('HSET', side, 'lq', field, format('l:%.0f', at), value)
  call('HDEL', side, format('l:%.0f', at - LOGGED))
end

-- Return what a held command's side record has of the fields m, gq and cancel and of those whose names ARGV
-- has, false where there is nothing; what is to be written with them, and how many values that has so far. A
-- record of another command with this id is deleted; what was brought before the first start stays.
local function read_side(side, message, from, to)
  local found = call('HMGET', side, 'm', 'gq', 'cancel', unpack(ARGV, from, to))
  if found[1] == message then return found, {side, nil, nil}, 1 end
  if found[1] then
    call('DEL', side)
    found = {}
  elseif found[2] or found[3] then
    call('PERSIST', side)
  end
  return found, {side, 'm', message, nil, nil}, 3
end

-- Store the fields of a held command, whose names and values stand in ARGV behind `before` and `values`;
-- return the answer, and whether these are its first.
local function store(side, message, manner, kinds, before, values)
  local there, written, last = read_side(side, message, before + 1, values)
  local found = {false}  -- and `written` with room for a field: growing a table costs
  for i = 1, #kinds do
    local kind, name, value = sub(kinds, i, i), ARGV[before + i], ARGV[values + i]
    local known = kind ~= STORED.PROGRESS and kind ~= STORED.LOG and there[i + 3]
    if kind == STORED.TIME then value = format('%.0f', now + value) end
    found[i] = known or (kind == STORED.TIME and value) or false
    if kind == STORED.LOG then
      append(side, name, value)
    elseif not known then
      written[last + 1], written[last + 2] = name, value
      last = last + 2
    end
    if kind == STORED.CALL then
      command = command + 1
      if not known then sent[#sent + 1] = command end
    end
  end
  if manner == MANNER.NOT_DURABLE then
    written[last + 1], written[last + 2] = 'd', '1'
    last = last + 2
  end
  if last > 1 then call('HSET', unpack(written, 1, last)) end
  if manner == MANNER.NOT_DURABLE then call('PEXPIRE', side, A_DAY) end
  return found, written[2] == 'm' and manner ~= MANNER.NOT_DURABLE
end

-- Store the fields of the items whose commands run under the leases that they name. A side record of another
-- type fails the request, but what others have stored by then is not stored again, so their commands are
-- sent.
local answers, fault = {}, nil
for item, record in ipairs(call('HMGET', active, unpack(ARGV, 5, arg))) do
  local ours, message, manner, kinds = ARGV[arg + 1], ARGV[arg + 2], ARGV[arg + 3], ARGV[arg + 4]
  local before, values, state = arg + 4, arg + 4 + #kinds, record and byte(record)
  local first, done, found, begun = command, true, nil, nil
  if (state == HELD or state == HELD_AND_CHANGED or state == LONE_HELD)
      and find(record, ours, 2, true) == 2 then
    done, found, begun = pcall(store, KEYS[first_side + item], message, manner, kinds, before, values)
    if not done then fault, found = found, nil end
    if done and (begun or manner == '1') then note(ARGV[4 + item], record, manner == '1', begun) end
  end
  if not found then command = first + select(2, string.gsub(kinds, 'c', '')) end
  answers[item] = found or false
  arg = values + #kinds
end

-- Return the flow and the delay of a command.
local function way_of(way)
  if way == '' then return '1', 0 end
  local flow, delay = match(way, '^([^|]*)|(-?%d+)$')
  return flow, tonumber(delay)
end

-- Send the commands whose calls are stored now: to their mailboxes, or on their way to another shard.
local function send_all()
  local COMMAND = 5  -- arguments of each
  local names, many = {}, {}
  for _, number in ipairs(sent) do
    local at = arg + COMMAND * (number - 1)
    local box, flow, delay = tonumber(ARGV[at + 1]), way_of(ARGV[at + 2])
    if box and delay <= 0 then many[box] = (many[box] or 0) + 1 end
    if box and flow ~= '1' and not queue_up then  -- the first class or tenant: a line is in use
      call('HSET', KEYS[11], 'c0', '0')
      queue_up = open_line(ready, active, KEYS[11], KEYS[12], KEYS[13])
    end
  end
  for box = 1, boxes do names[box] = sub(KEYS[FIRST_BOX + box], ARGV[2] + 1) end
  local records = boxes > 0 and call('HMGET', active, unpack(names)) or {}
  local put, _, finish = mailbox_writer(ready, active, lone, FIRST_BOX, names, records, held, many,
    queue_up or nil)

  for _, number in ipairs(sent) do
    local at, other = arg + COMMAND * (number - 1), KEYS[first_side + items + number]
    local box, id, envelope, mark = tonumber(ARGV[at + 1]), ARGV[at + 3], ARGV[at + 4], ARGV[at + 5]
    local flow, delay = way_of(ARGV[at + 2])
    if box then
      if mark ~= '' then redis.pcall('SET', other, mark) end
      local at = waits_until(due, KEYS[6], KEYS[7], names[box], id, delay)
      local bare, lines = parts_sent(envelope)
      if lines then at = at or stands_until(due, KEYS[6], KEYS[7], names[box], id, lines, now) end
      -- Its mailbox takes nothing: it is tried again.
      if not at and put(box, envelope, flow) then at = now + 1000 end
      if at then
        keep_delayed(ready, due, KEYS[6], KEYS[7], names[box], id, at, with_flow(envelope, flow), lines)
      end
      if publish then publish('accepted', names[box], bare, '', '', '', '') end
    else
      local text = ARGV[at + 1]
      send_out(other, due, ready, match(text, '^%d+'), now,
        {text = text, wait = delay, envelope = envelope, extra = mark})
    end
  end
  finish()
  redis.pcall('HINCRBY', KEYS[8], 'depth', #sent)
  redis.pcall('HINCRBY', KEYS[8], 'accepted', #sent)
end

if #sent > 0 then send_all() end
if fault then return redis.error_reply(type(fault) == 'table' and fault.err or tostring(fault)) end
return answers
