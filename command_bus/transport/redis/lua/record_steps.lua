-- record_steps: store what durable commands that run have come to, and send the commands that they call.
--
-- uses: memory_limit, record, newer, lone, holds, open_line(line_flow, line_turns, line_served, line), place, postpone, arrive, deliver, agenda, send_out, events
--
-- KEYS[1]   ready     stream of activations
-- KEYS[2]   active    hash: mailbox name -> record (see shared/record.lua)
-- KEYS[3]   lone      hash: mailbox name -> envelope (see shared/lone.lua)
-- KEYS[4]   paused    hash: scope -> mode|since in ms|why (see shared/holds.lua)
-- KEYS[5]   due       sorted set of what becomes due, by ms
-- KEYS[6]   delayed   hash: command id -> mailbox name, newline, entry (see shared/entry_text.lua)
-- KEYS[7]   later     hash: mailbox name -> number of delayed commands
-- KEYS[8]   stats     hash of counters
-- KEYS[9]   watched   hash: entity type -> number of events to keep (see shared/events.lua)
-- KEYS[10]  events    stream of what happened to commands of watched types
-- KEYS[11]  flows     hash: what classes and shares have used (see shared/line.lua); this and the next two may not exist
-- KEYS[12]  turns     sorted set of flows, by their virtual time
-- KEYS[13]  line      sorted set of the places of entities that wait
-- KEYS[14]  suspended  hash: mailbox name -> the command that waits (see shared/arrive.lua)
-- KEYS[15…] for each item its side record (see shared/arrive.lua); and for each command that it sends the mailbox and the mark, or twice the
--           stream of those for another shard
-- ARGV[1]   group     of consumers
-- ARGV[2…]  for each item: its mailbox, activation, 'fence|message' of its start, '1' if the count of its attempts begins again, 'd' if its record lives for a day, how
--           many fields, and for each its kind, name and value. The kinds: f a value; p a value that takes the place of the last; l an entry of
--           the log, its name is 'fence|number'; t a time, the value is ms from now; c a command, behind the value stand its text (see shared/deliver.lua), delay in ms, envelope and mark
--
-- returns for each item nil if its lease is lost: nothing was changed; else for each field false if it is stored now, the ms of a time, or what
--         was there already: that stays, and no command is sent for it
--
-- Once the first field is written nothing fails.

local ready, active, lone, due = KEYS[1], KEYS[2], KEYS[3], KEYS[5]
pass_memory_limit(ready, ARGV[1])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local keys = {ready = ready, active = active, lone = lone, due = due, delayed = KEYS[6], later = KEYS[7], suspended = KEYS[14], now = now}
local publish, queue_up = nil, nil
if redis.call('EXISTS', KEYS[4], KEYS[9], KEYS[11]) > 0 then
  if redis.call('EXISTS', KEYS[4]) == 1 then keys.paused = KEYS[4] end
  publish = redis.call('EXISTS', KEYS[9]) == 1 and publisher(KEYS[9], KEYS[10])
  queue_up = redis.call('EXISTS', KEYS[11]) == 1 and open_line(ready, active, KEYS[11], KEYS[12], KEYS[13])
end
local key, arg, sent = 14, 1, 0
local A_DAY, LOGGED = 86400000, 100

-- Send a command: to its mailbox, or on its way to another shard.
local function send(box, mark, text, wait, envelope, extra)
  local target, flow, name = parse_follow_up(text)
  sent = sent + 1
  if target ~= '' then
    send_out(box, due, ready, target, now, {text = text, wait = wait, envelope = envelope, extra = extra})
    return
  end
  if flow ~= '1' and not queue_up then  -- the first class or tenant: a line is in use
    redis.call('HSET', KEYS[11], 'c0', '0')
    queue_up = open_line(ready, active, KEYS[11], KEYS[12], KEYS[13])
  end
  deliver(keys, box, mark, text, wait, envelope, extra, queue_up)
  if publish then publish('accepted', name, envelope, '', '', '', '') end
end

-- Begin the count of a command's attempts again: the record's attempt is the fifth field.
local function count_again(name, record)
  local head, tail = string.match(record, '^([^|]*|[^|]*|[^|]*|[^|]*|)%d+(|.*)$')
  if head then redis.call('HSET', active, name, head .. '1' .. tail) end
end

-- Append an entry to the log of a command: it keeps the last ones. One that is repeated, by its fence and number, is there already.
local function append(side, field, value)
  local fence, number = string.match(field, '^(%d+)|(%d+)$')
  local last_fence, last = string.match(redis.call('HGET', side, 'lq') or '', '^(%d+)|(%d+)$')
  if fence == last_fence and tonumber(number) <= tonumber(last) then return true end
  local at = redis.call('HINCRBY', side, 'ln', 1)
  redis.call('HSET', side, 'lq', field, string.format('l:%.0f', at), value)
  redis.call('HDEL', side, string.format('l:%.0f', at - LOGGED))
  return true
end

-- Return what the fields of a held command's side record have, false where there is nothing, and what is to be written with them. A record of
-- another command with this id is deleted; what was brought before the first start stays.
local function read_side(side, message, names)
  local found = redis.call('HMGET', side, 'm', 'gq', 'cancel', unpack(names))
  if found[1] == message then return found, {side} end
  if found[1] then
    redis.call('DEL', side)
    found = {}
  elseif found[2] or found[3] then
    redis.call('PERSIST', side)
  end
  return found, {side, 'm', message}
end

-- Take the items from KEYS and ARGV, and store the fields of those whose command runs under the lease that they name.
local answers, item = {}, 0
while ARGV[arg + 1] do
  local name, activation, running, again, count = ARGV[arg + 1], ARGV[arg + 2], ARGV[arg + 3], ARGV[arg + 4], tonumber(ARGV[arg + 5])
  arg, key, item = arg + 5, key + 1, item + 1
  local side, record = KEYS[key], redis.call('HGET', active, name)
  local is_held = record and string.find(record, '^[hHO]|')
    and string.find(record, '|' .. activation .. '|' .. running .. '|', 2, true) == 2
  local first_arg, names = arg, {}
  for i = 1, count do
    names[i], arg = ARGV[arg + 2], arg + (ARGV[arg + 1] == 'c' and 7 or 3)
  end
  local found, written, there, children = {}, nil, nil, {}
  if is_held then there, written = read_side(side, string.match(running, '|(.*)$'), names) end
  arg = first_arg
  for i = 1, count do
    local kind, value = ARGV[arg + 1], ARGV[arg + 3]
    local is_new = is_held and (kind == 'l' or kind == 'p' or not there[i + 3])
    if kind == 't' then value = string.format('%.0f', now + value) end
    found[i] = is_held and ((not is_new and there[i + 3]) or (kind == 't' and value)) or false
    if is_new and kind == 'l' then
      append(side, names[i], value)
    elseif is_new then
      written[#written + 1], written[#written + 2] = names[i], value
    end
    if kind == 'c' then
      key = key + 2
      if is_new then children[#children + 1] = {KEYS[key - 1], KEYS[key], ARGV[arg + 4], tonumber(ARGV[arg + 5]), ARGV[arg + 6], ARGV[arg + 7]} end
      arg = arg + 4
    end
    arg = arg + 3
  end
  if is_held then
    if again == 'd' then written[#written + 1], written[#written + 2] = 'd', '1' end
    if #written > 1 then redis.call('HSET', unpack(written)) end
    if again == 'd' then redis.call('PEXPIRE', side, A_DAY) end
    if again == '1' then count_again(name, record) end
    for _, child in ipairs(children) do send(unpack(child)) end
  end
  answers[item] = is_held and found or false
end

if queue_up then queue_up.finish() end
if sent > 0 then
  redis.pcall('HINCRBY', KEYS[8], 'depth', sent)
  redis.pcall('HINCRBY', KEYS[8], 'accepted', sent)
end
return answers
