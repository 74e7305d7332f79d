-- advance: settle the commands that were running and start the next of each entity, for a batch of entities.
--
-- uses: memory_limit, record, holds, outcomes, events
--
-- KEYS[1]   ready     stream of activations; its pending entries are the leases
-- KEYS[2]   active    hash: mailbox name -> record (see shared/record.lua)
-- KEYS[3]   fence     the shard's highest fence
-- KEYS[4]   stats     hash of counters
-- KEYS[5]   due       sorted set of what becomes due, by ms
-- KEYS[6]   paused    hash: scope -> mode|since in ms|why (see shared/holds.lua)
-- KEYS[7]   parked    hash: mailbox name -> id of its dead letter
-- KEYS[8]   dead      stream of dead letters
-- KEYS[9]   watched   hash: entity type -> number of events to keep (see shared/events.lua)
-- KEYS[10]  events    stream of what happened to commands of watched types
-- KEYS[11…] the mailbox of each step; then, in the order of the steps, the keys that their operations name: m and e a mark, i an inbox,
--           o the record and the stream of outcomes of a dispatch
-- ARGV[1]   group     of consumers
-- ARGV[2]   owner     consumer name of the worker that asks
-- ARGV[3]   reply ttl in ms, of an inbox
-- ARGV[4]   prefix    length of the mailbox keys' prefix: what follows it is the mailbox's name
-- ARGV[5]   steps     how many
-- ARGV[6…]  for each step: operation, activation, holder, running ('fence|message', or empty if none of its commands was started); then, if the
--           operation has m: mark ttl in ms, mark; e: ttl; i: reply; o: outcome; and by its verb b, p: record, raw envelope; w: delay in ms, '1'
--           if the attempt counts; g: '1' if the attempt counts
--
-- An operation is a few letters. The first is the verb: t take, d done, n done but denied, x done but expired, b write a dead letter,
-- p park, w wait for a retry, g give back. The second says what follows: s stay (start the next), y yield (only if no other mailbox
-- waits), l leave (start none). The others say what is left: a mark (m), a reply (i), an outcome (o), or the end of a wait (e): if the mark
-- says that a command waits in this mailbox, the mark gets a time to live; any other mark stays as it is.
--
-- returns now in ms, then for each step two values:
--         'fence|message|attempt|first start in ms' and the envelope of the command that now runs under this lease (all fields of an
--         entry that has others)
--         'idle', 'yield', 'wait' or 'stop', and nil     the lease is given up
--         'gone' and nil                                 the lease is not ours: nothing was changed
--         'error' and a text                             a key of this entity is of another type
--
-- After the first write no fault fails the whole batch, whatever a counter or a record holds: what was done is answered.
--
-- A step that is repeated by the same holder (a lost reply) and has taken effect already answers with the present state. The holder is one
-- lease of one worker, not the worker: a worker that lost an activation and reads it again may not start its command. What all entities
-- share is read once before the steps and written once after them; `records` holds the present state in between. Steps 1, 2 and 4 are no
-- functions: each function that a script defines costs 0.1 us per call of the script.

local ready, active, fence_key, stats = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local due, paused, parked, dead = KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local group, owner, reply_ttl, prefix, steps = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local call, try, sub, find, format = redis.call, redis.pcall, string.sub, string.find, string.format

pass_memory_limit(ready, group)

-- 1. Read the steps from KEYS and ARGV.

local operations, verbs, activations, holders, runs, messages, names, lefts = {}, {}, {}, {}, {}, {}, {}, {}
local key, arg = 10 + steps, 5

-- Return what a step leaves: its marks, reply and outcome by name, and the arguments of its verb by number.
local function read_left(operation, verb)
  local left = {}
  for at = 3, #operation do
    local what = sub(operation, at, at)
    key, arg = key + 1, arg + 1
    if what == 'm' then
      left.mark, left.ttl, left.value = KEYS[key], ARGV[arg], ARGV[arg + 1]
      arg = arg + 1
    elseif what == 'e' then
      left.waiting, left.ttl = KEYS[key], ARGV[arg]
    elseif what == 'i' then
      left.inbox, left.reply = KEYS[key], ARGV[arg]
    else
      left.record, left.outcomes, left.outcome = KEYS[key], KEYS[key + 1], ARGV[arg]
      key = key + 1
    end
  end
  if verb == 'b' or verb == 'p' or verb == 'w' then
    left[1], left[2] = ARGV[arg + 1], ARGV[arg + 2]
    arg = arg + 2
  elseif verb == 'g' then
    left[1] = ARGV[arg + 1]
    arg = arg + 1
  end
  return left
end

for step = 1, steps do
  local operation, running = ARGV[arg + 1], ARGV[arg + 4]
  operations[step], activations[step], holders[step], runs[step] = operation, ARGV[arg + 2], ARGV[arg + 3], running
  names[step] = sub(KEYS[10 + step], prefix + 1)
  arg = arg + 4
  local verb = sub(operation, 1, 1)
  verbs[step] = verb
  if #operation > 2 or (verb ~= 'd' and verb ~= 't') then lefts[step] = read_left(operation, verb) end
  local bar = find(running, '|', 1, true)
  if bar then messages[step] = sub(running, bar + 1) end
end

-- 2. Prepare: read at once what all steps need, above all the record of each mailbox and its next command: the one behind the one that is
-- settled, or the first.

local time = call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local now_text = format('%.0f', now)
local any_paused, publish, is_watched = call('EXISTS', paused, KEYS[9]) > 0, nil, nil
if any_paused and call('EXISTS', KEYS[9]) == 1 then
  publish, is_watched = publisher(KEYS[9], KEYS[10])
  any_paused = call('EXISTS', paused) == 1
end

local fence = math.max(tonumber(call('GET', fence_key) or '0'), time[1] * 1000000 + time[2] - 1)
-- Printing a whole fence takes longer than all else here, so only its last six digits are printed each time.
local fence_high, fence_low = format('%.0f', math.floor(fence / 1000000)), fence % 1000000
local function next_fence()
  fence, fence_low = fence + 1, fence_low + 1
  if fence_low == 1000000 then fence_high, fence_low = format('%.0f', fence / 1000000), 0 end
  return fence_high .. format('%06d', fence_low)
end

local settling = {d = true, n = true, x = true, b = true}
local records, heads, repeated = {}, nil, {}

local seen, reading, behind = {}, {'XREAD', 'COUNT', '1', 'STREAMS'}, {}
for step, record in ipairs(call('HMGET', active, unpack(names))) do
  local box, verb = KEYS[10 + step], verbs[step]
  records[names[step]] = record
  if seen[box] then
    repeated[box] = true
  elseif verb == 't' or settling[verb] then
    seen[box] = true
    reading[#reading + 1] = box
    behind[#behind + 1] = verb ~= 't' and messages[step] or '0-0'
  end
end
if #behind > 0 then
  for i = 1, #behind do reading[#reading + 1] = behind[i] end
  local found = try(unpack(reading))
  if not found or not found.err then  -- else a key is no stream: each step reads its own mailbox, and only that one fails
    heads = {}
    for _, stream in ipairs(found or {}) do heads[stream[1]] = stream[2][1] end
  end
end

-- 3. Perform the steps one by one.

local started, settled = 0, 0
local counts = {rejected = 0, expired = 0, buried = 0, dead = 0, retried = 0, handed_back = 0}
local changed, released, emptied, taken, touched = {}, {}, {}, {}, {}
local bodies, events, letter_id = {}, {}, nil
local others_wait = nil

local function note_event(...) events[#events + 1] = {...} end

-- Return the first command of a mailbox, or the one behind `settles`. Raises if the mailbox is no stream.
local function next_of(step, settles)
  local box = KEYS[10 + step]
  if heads and not repeated[box] then return heads[box] end
  return call('XRANGE', box, settles and '(' .. settles or '-', '+', 'COUNT', 1)[1]
end

local function envelope_in(fields)
  for i = 1, #fields, 2 do
    if fields[i] == 'e' then return fields[i + 1] end
  end
  return ''
end

local function body_of(fields)
  return #fields == 2 and fields[1] == 'e' and fields[2] or fields
end

local function another_waits()
  if others_wait == nil then
    local pending = try('XPENDING', ready, group)  -- the group may be gone: then no worker reads
    others_wait = not pending.err and call('XLEN', ready) > tonumber(pending[1])
  end
  return others_wait
end

-- The states that a mailbox can enter. Each sets its record and returns the answer to the step.

local function become(name, record)
  records[name] = record
  changed[name] = true
end

local function rest(name, activation, state, attempt, first)
  released[#released + 1] = activation
  become(name, pack_record(state, '', attempt, first))
end

local function requeue(name, activation, attempt, first)
  become(name, queue(ready, name, attempt, first))
  released[#released + 1] = activation
  return 'yield'
end

local function start(step, name, activation, holder, head, attempt, first, follow)
  if not head then
    released[#released + 1] = activation
    emptied[#emptied + 1] = KEYS[10 + step]
    become(name, false)
    return 'idle'
  end
  if any_paused and holds_of(paused, name) then
    rest(name, activation, 's', attempt, first)
    return 'stop'
  end
  if follow ~= 's' and (follow == 'l' or another_waits()) then return requeue(name, activation, attempt, first) end
  started = started + 1
  if first == '0' then first = now_text end
  local running = next_fence() .. '|' .. head[1] .. '|' .. attempt + 1 .. '|' .. first
  become(name, 'h|' .. activation .. '|' .. running .. '|' .. holder)  -- a record, packed in place: this runs for each command
  bodies[step] = body_of(head[2])
  if publish then note_event('started', name, envelope_in(head[2]), attempt + 1, string.match(running, '^%d+'), owner, '') end
  return running
end

-- What a settled command leaves.

-- Write the mark. That of a parked command stays until an operator decides.
local function write_mark(left, parks, name)
  if left.waiting then
    local mark = try('GET', left.waiting)
    if type(mark) == 'string' and sub(mark, 1, 1) == 'q' and sub(mark, 10) == name then call('SET', left.waiting, mark, 'PX', left.ttl) end
  end
  if not left.mark then return end
  if parks then
    call('SET', left.mark, left.value)
  else
    call('SET', left.mark, left.value, 'PX', left.ttl)
  end
end

local function push_reply(left)
  if left.inbox and type(try('LPUSH', left.inbox, left.reply)) == 'number' then touched[left.inbox] = true end
end

local function write_letter(name, left, is_parked)
  letter_id = call('XADD', dead, '*', 'r', left[1], 'e', left[2], 'm', name, 'p', is_parked)
  counts.dead = counts.dead + 1
  return letter_id
end

-- The verbs, for a command that runs under this lease.

local counted = {n = 'rejected', x = 'expired', b = 'buried'}

-- Settle a command and go on with the next. Without a next one, the whole mailbox is deleted.
local function settle(step, verb, name, activation, holder, follow, left)
  local message = messages[step]
  local head = next_of(step, message)  -- before anything is written: this may raise
  if verb == 'b' then write_letter(name, left, '0') end
  local counter = counted[verb]
  if counter then counts[counter] = counts[counter] + 1 end
  settled = settled + (head and call('XDEL', KEYS[10 + step], message) or 1)
  if left then
    write_mark(left, false, name)
    push_reply(left)
    if left.outcomes then keep_outcome(left.record, left.outcomes, left.outcome) end
  end
  return start(step, name, activation, holder, head, 0, '0', follow)
end

local function park(name, activation, left, attempt, first)
  call('HSET', parked, name, write_letter(name, left, '1'))
  rest(name, activation, 's', attempt, first)
  write_mark(left, true)
  push_reply(left)
  if left.outcomes then keep_outcome(left.record, left.outcomes, left.outcome) end
  return 'stop'
end

local function wait(name, activation, delay, counts_as_attempt, attempt, first)
  local tried = counts_as_attempt == '0' and format('%d', attempt - 1) or attempt
  local at = now + tonumber(delay)
  local head = call('ZRANGE', due, 0, 0, 'WITHSCORES')
  call('ZADD', due, at, 'r:' .. name)
  rest(name, activation, 'w', tried, first)
  if not head[2] or at < tonumber(head[2]) then try('XADD', ready, '*', 'tick', '1') end
  local kind = counts_as_attempt == '0' and 'handed_back' or 'retried'
  counts[kind] = counts[kind] + 1
  return 'wait'
end

local function give_back(name, activation, counts_as_attempt, attempt, first)
  if counts_as_attempt == '0' then
    attempt = format('%d', math.max(attempt - 1, 0))
    counts.handed_back = counts.handed_back + 1
  end
  return requeue(name, activation, attempt, first)
end

local event_of = {d = 'completed', n = 'rejected', x = 'expired', b = 'dead_lettered', p = 'parked'}

-- Note the event of a verb. Recovery settles without a lease of its own (an empty holder), so the command was interrupted first.
local function note_end(step, verb, name, left, record, at)
  local entry = call('XRANGE', KEYS[10 + step], messages[step], messages[step])[1]
  local envelope, fence_then = entry and envelope_in(entry[2]) or '', string.match(runs[step], '^%d+')
  local attempt, worker = string.match(record, '^(%d+)|[^|]*|([^#]*)', at)
  if holders[step] == '' and verb ~= 'g' then note_event('interrupted', name, envelope, attempt, fence_then, worker, '') end
  if verb == 'w' then
    note_event(left[2] == '1' and 'retried' or 'handed_back', name, envelope, attempt, fence_then, worker, left[1])
  elseif verb == 'g' then
    note_event(left[1] == '1' and 'interrupted' or 'handed_back', name, envelope, attempt, fence_then, worker, '')
  else
    note_event(event_of[verb], name, envelope, attempt, fence_then, worker, '')
  end
end

-- Carry out the verb. The record's attempt begins at `at`.
local function carry_out(step, verb, name, activation, follow, left, record, at)
  if publish and is_watched(name) then note_end(step, verb, name, left, record, at) end
  if settling[verb] then return settle(step, verb, name, activation, holders[step], follow, left) end
  local attempt, first = string.match(record, '^(%d+)|([^|]*)|', at)
  if verb == 'p' then return park(name, activation, left, attempt, first) end
  if verb == 'w' then return wait(name, activation, left[1], left[2], attempt, first) end
  return give_back(name, activation, left[1], attempt, first)
end

-- Answer a step whose command does not run under this lease: the mailbox is ready, the step was done before, or the lease is not ours.
local function perform_by_record(step, verb, name, activation, follow, record)
  local state, held_by, held_fence, held_message, attempt, first, held_for = parse_record(record)
  if held_by ~= activation then return 'gone' end
  if state == 'r' then
    if verb == 't' then
      local head = next_of(step)
      taken[#taken + 1] = activation
      return start(step, name, activation, holders[step], head, attempt, first, follow)
    elseif verb == 'g' and runs[step] == '' then
      return requeue(name, activation, attempt, first)
    end
    return 'gone'
  end
  if state ~= 'h' or held_for ~= holders[step] then return 'gone' end
  local head = call('XRANGE', KEYS[10 + step], held_message, held_message)[1]
  if not head then return 'gone' end
  bodies[step] = body_of(head[2])
  return format('%s|%s|%s|%s', held_fence, held_message, attempt, first)
end

-- Perform a step. The two usual cases compare the record as a whole: parsing it costs more.
local function perform(step, verb)
  local name, operation, activation = names[step], operations[step], activations[step]
  local record = records[name]
  if not record then return 'gone' end
  local follow = sub(operation, 2, 2)
  if messages[step] and verb ~= 't' then
    local ours = 'h|' .. activation .. '|' .. runs[step] .. '|'
    if sub(record, 1, #ours) == ours then
      return carry_out(step, verb, name, activation, follow, lefts[step], record, #ours + 1)
    end
  elseif verb == 't' and record == 'r|' .. activation .. '|||0|0|' then
    local head = next_of(step)
    taken[#taken + 1] = activation
    return start(step, name, activation, holders[step], head, 0, '0', follow)
  end
  return perform_by_record(step, verb, name, activation, follow, record)
end

-- Publish the events of a step if it has succeeded.
local function publish_events(done)
  if done then
    for _, event in ipairs(events) do
      if event[1] == 'dead_lettered' or event[1] == 'parked' then event[7] = letter_id end
      publish(unpack(event))
    end
  end
  events = {}
end

local answers = {now_text}
for step = 1, steps do
  local done, answer = pcall(perform, step, verbs[step])
  if publish then publish_events(done) end
  if done then
    answers[2 * step], answers[2 * step + 1] = answer, bodies[step] or false
  else
    answers[2 * step], answers[2 * step + 1] = 'error', type(answer) == 'table' and answer.err or tostring(answer)
  end
end

-- 4. Write what the steps came to.

local kept, closed = {active}, {active}
for name in pairs(changed) do
  local record = records[name]
  if record then
    kept[#kept + 1], kept[#kept + 2] = name, record
  else
    closed[#closed + 1] = name
  end
end
if #released > 0 then
  call('XACK', ready, group, unpack(released))
  call('XDEL', ready, unpack(released))
end
if #emptied > 0 then
  call('DEL', unpack(emptied))
  call('HDEL', unpack(closed))
end
if #kept > 1 then call('HSET', unpack(kept)) end

expire_outcomes(now)
for inbox in pairs(touched) do try('PEXPIRE', inbox, reply_ttl) end
if #taken > 0 then
  local claim = {'XCLAIM', ready, group, owner, '0'}
  for i = 1, #taken do claim[5 + i] = taken[i] end
  claim[#claim + 1] = 'JUSTID'
  try(unpack(claim))  -- the group may be gone: what has started has started
end
if started > 0 then call('SET', fence_key, format('%.0f', fence)) end
if settled > 0 then
  try('HINCRBY', stats, 'depth', -settled)
  try('HINCRBY', stats, 'settled', settled)
end
for name, count in pairs(counts) do
  if count > 0 then try('HINCRBY', stats, name, count) end
end
return answers
