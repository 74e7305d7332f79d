-- advance: settle the commands that were running and start the next of each entity, for a batch of entities.
--
-- KEYS[1]   ready     stream of activations; its pending entries are the leases
-- KEYS[2]   active    hash: mailbox name -> state|activation|fence|message|attempt|first start in ms|holder
-- KEYS[3]   fence     the shard's highest fence
-- KEYS[4]   stats     hash of counters
-- KEYS[5]   due       sorted set of what becomes due, by ms
-- KEYS[6]   paused    hash: scope -> mode|since in ms|why (see operate.lua)
-- KEYS[7]   parked    hash: mailbox name -> id of its dead letter
-- KEYS[8]   dead      stream of dead letters
-- KEYS[9]   watched   hash: entity type -> how many events are kept (see telling.lua)
-- KEYS[10]  events    stream of what happened to commands of watched types
-- KEYS[11…] the mailbox of each step; then, in the order of the steps, what their operations name: m and e a mark, i an inbox, o the
--           record and the stream of outcomes of a dispatch
-- ARGV[1]   group     of consumers
-- ARGV[2]   owner     who asks: the consumer's name
-- ARGV[3]   reply ttl in ms, of an inbox
-- ARGV[4]   prefix    length of the mailbox keys' prefix: what follows it is the mailbox's name
-- ARGV[5]   steps     how many
-- ARGV[6…]  for each step: operation, activation, holder, running ('fence|message', or empty if nothing of it was started); then, if the
--           operation has m: mark ttl in ms, mark; e: ttl; i: reply; o: outcome; and by its verb b, p: record, raw envelope; w: delay in ms, '1'
--           if the attempt counts; g: '1' if the attempt counts
--
-- An operation is a few letters. The verb: t take, d done, n done but denied, x done but expired, b bury, p park, w wait for a retry,
-- g give back. What follows: s stay (start the next), y yield (only if nobody else waits), l leave (start none). What it leaves: m, i, o;
-- or e, an end of the wait: if the mark says that a command waits in this mailbox, it is kept so for a time; any other is left alone.
--
-- returns now in ms, then for each step two values:
--         'fence|message|attempt|first start in ms' and the envelope, of what runs now under this lease (all fields of an entry that
--         has others)
--         'idle', 'yield', 'wait' or 'stop', and nil     the lease is given up
--         'gone' and nil                                 the lease is not ours: nothing was changed
--         'error' and a text                             a key of this entity is of another type
--
-- Behind the first write nothing fails for all, whatever others left in a counter or a record: what was done is answered.
--
-- Asked again by the same holder (a lost reply), a step whose effect is there already answers with the present state. The holder
-- is one lease of one worker, not the worker: an activation that it lost sight of and meets again is nothing that it may start. The
-- first write frees memory (or nothing), so that a server at its limit still lets work drain. What all entities share is read once
-- before the steps and written once after them; `records` is what it is meanwhile.

local ready, active, fence_key, stats = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local due, paused, parked, dead = KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local group, owner, reply_ttl, prefix, steps = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local call, try, sub, find, format = redis.call, redis.pcall, string.sub, string.find, string.format

call('XACK', ready, group, '0-0')
local time = call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local now_text = format('%.0f', now)
local fence = math.max(tonumber(call('GET', fence_key) or '0'), time[1] * 1000000 + time[2] - 1)
local any_paused, tell = call('EXISTS', paused, KEYS[9]) > 0, nil
local is_told, said = nil, {}
local function say(...) said[#said + 1] = {...} end
if any_paused and call('EXISTS', KEYS[9]) == 1 then
  tell, is_told = teller(KEYS[9], KEYS[10])
  any_paused = call('EXISTS', paused) == 1
end

local started, settled = 0, 0
local counts = {rejected = 0, expired = 0, buried = 0, dead = 0, retried = 0, handed_back = 0}
local others_wait = nil
local changed, released, emptied, taken, touched, keeps, noted = {}, {}, {}, {}, {}, {}, {}
local bodies = {}

-- What the steps are, from ARGV, and what they leave.

local operations, activations, holders, runs, messages, lefts = {}, {}, {}, {}, {}, {}
local key, arg = 10 + steps, 5

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

local settling = {d = true, n = true, x = true, b = true}
local names, seen, repeated = {}, {}, {}
local reading, behind = {'XREAD', 'COUNT', '1', 'STREAMS'}, {}
for step = 1, steps do
  local operation, running, box = ARGV[arg + 1], ARGV[arg + 4], KEYS[10 + step]
  operations[step], activations[step], holders[step], runs[step] = operation, ARGV[arg + 2], ARGV[arg + 3], running
  arg = arg + 4
  local verb = sub(operation, 1, 1)
  if #operation > 2 or (verb ~= 'd' and verb ~= 't') then lefts[step] = read_left(operation, verb) end
  local bar = find(running, '|', 1, true)
  if bar then messages[step] = sub(running, bar + 1) end
  names[step] = sub(box, prefix + 1)
  if seen[box] then
    repeated[box] = true
  elseif verb == 't' or settling[verb] then
    seen[box] = true
    reading[#reading + 1] = box
    behind[#behind + 1] = verb ~= 't' and messages[step] or '0-0'
  end
end

-- What all need is read at once: the records, and the command behind the one that is settled, or the first.

local records, heads = {}, nil
for step, record in ipairs(call('HMGET', active, unpack(names))) do records[names[step]] = record end
if #behind > 0 then
  for i = 1, #behind do reading[#reading + 1] = behind[i] end
  local found = try(unpack(reading))
  if not found or not found.err then  -- one that is no stream fails alone, below
    heads = {}
    for _, stream in ipairs(found or {}) do heads[stream[1]] = stream[2][1] end
  end
end

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

-- Printing a whole fence takes longer than all else here: its last six digits are printed alone.
local fence_high, fence_low = format('%.0f', math.floor(fence / 1000000)), fence % 1000000
local function next_fence()
  fence, fence_low = fence + 1, fence_low + 1
  if fence_low == 1000000 then fence_high, fence_low = format('%.0f', fence / 1000000), 0 end
  return fence_high .. format('%06d', fence_low)
end

local function somebody_waits()
  if others_wait == nil then
    local pending = try('XPENDING', ready, group)  -- the group may be gone: then nobody reads
    others_wait = not pending.err and call('XLEN', ready) > tonumber(pending[1])
  end
  return others_wait
end

-- The states that a mailbox can come to.

local function become(name, record)
  records[name] = record
  changed[name] = true
end

local function rest(name, activation, state, attempt, first)
  released[#released + 1] = activation
  become(name, state .. '||||' .. attempt .. '|' .. first .. '|')
end

-- Where the ready stream takes nothing, it is as if its entry were lost: see repair.lua.
local function requeue(name, activation, attempt, first)
  local added = try('XADD', ready, '*', 'e', name)
  become(name, 'r|' .. (type(added) == 'string' and added or '0-0') .. '|||' .. attempt .. '|' .. first .. '|')
  released[#released + 1] = activation
  return 'yield'
end

local function stopped(name)
  for _, value in ipairs(call('HMGET', paused, name, string.match(name, '^[^:/]*') .. ':*', '*')) do
    if value and sub(value, 1, 2) ~= 'd|' then return true end
  end
  return false
end

local function start(step, name, activation, holder, head, attempt, first, follow)
  if not head then
    released[#released + 1] = activation
    emptied[#emptied + 1] = KEYS[10 + step]
    become(name, false)
    return 'idle'
  end
  if any_paused and stopped(name) then
    rest(name, activation, 's', attempt, first)
    return 'stop'
  end
  if follow ~= 's' and (follow == 'l' or somebody_waits()) then return requeue(name, activation, attempt, first) end
  started = started + 1
  if first == '0' then first = now_text end
  local running = next_fence() .. '|' .. head[1] .. '|' .. attempt + 1 .. '|' .. first
  become(name, 'h|' .. activation .. '|' .. running .. '|' .. holder)
  bodies[step] = body_of(head[2])
  if tell then say('started', name, envelope_in(head[2]), attempt + 1, string.match(running, '^%d+'), owner, '') end
  return running
end

-- What a settled command leaves. The mark of a parked one stays until somebody decides.
local function remember(left, parks, name)
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

local function push(left)
  if left.inbox and type(try('LPUSH', left.inbox, left.reply)) == 'number' then touched[left.inbox] = true end
end

-- Keep the outcome of a dispatch's command, as long and as many as its record says; a dispatch that is forgotten keeps none.
local function note(left)
  if not left.outcomes then return end
  local keep = keeps[left.record]
  if keep == nil then
    keep = try('HMGET', left.record, 'keep_ms', 'keep_max')
    keeps[left.record] = keep
  end
  if not keep[1] or keep[1] == '0' then return end
  local kept = try('XADD', left.outcomes, 'MAXLEN', '~', keep[2], '*', 'r', left.outcome)
  if type(kept) == 'string' then noted[left.outcomes] = tonumber(keep[1]) end
end

local letter_id
local function letter(name, left, is_parked)
  letter_id = call('XADD', dead, '*', 'r', left[1], 'e', left[2], 'm', name, 'p', is_parked)
  counts.dead = counts.dead + 1
  return letter_id
end

local counted = {n = 'rejected', x = 'expired', b = 'buried'}

-- Settle a command and go on with the next, if there is one: without, the whole mailbox is deleted.
local function settle(step, verb, name, activation, holder, follow, left)
  local message = messages[step]
  local head = next_of(step, message)  -- raises if the mailbox is no stream, before anything is written
  if verb == 'b' then letter(name, left, '0') end
  local counter = counted[verb]
  if counter then counts[counter] = counts[counter] + 1 end
  settled = settled + (head and call('XDEL', KEYS[10 + step], message) or 1)
  if left then
    remember(left, false, name)
    push(left)
    note(left)
  end
  return start(step, name, activation, holder, head, 0, '0', follow)
end

local function park(name, activation, left, attempt, first)
  call('HSET', parked, name, letter(name, left, '1'))
  rest(name, activation, 's', attempt, first)
  remember(left, true)
  push(left)
  note(left)
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

local told_as = {d = 'completed', n = 'rejected', x = 'expired', b = 'dead_lettered', p = 'parked'}

-- Say what becomes of a command. Whoever settles for a holder that was lost has no lease of its own.
local function say_end(step, verb, name, left, record, at)
  local entry = call('XRANGE', KEYS[10 + step], messages[step], messages[step])[1]
  local envelope, fence_then = entry and envelope_in(entry[2]) or '', string.match(runs[step], '^%d+')
  local attempt, worker = string.match(record, '^(%d+)|[^|]*|([^#]*)', at)
  if holders[step] == '' and verb ~= 'g' then say('interrupted', name, envelope, attempt, fence_then, worker, '') end
  if verb == 'w' then
    say(left[2] == '1' and 'retried' or 'handed_back', name, envelope, attempt, fence_then, worker, left[1])
  elseif verb == 'g' then
    say(left[1] == '1' and 'interrupted' or 'handed_back', name, envelope, attempt, fence_then, worker, '')
  else
    say(told_as[verb], name, envelope, attempt, fence_then, worker, '')
  end
end

-- A command runs under this very lease: do to it what the verb says.
local function proceed(step, verb, name, activation, follow, left, record, at)
  if tell and is_told(name) then say_end(step, verb, name, left, record, at) end
  if settling[verb] then return settle(step, verb, name, activation, holders[step], follow, left) end
  local attempt, first = string.match(record, '^(%d+)|([^|]*)|', at)
  if verb == 'p' then return park(name, activation, left, attempt, first) end
  if verb == 'w' then return wait(name, activation, left[1], left[2], attempt, first) end
  return give_back(name, activation, left[1], attempt, first)
end

-- Something else is the case: the mailbox is ready, the step was done before, or the lease is not ours.
local function look_again(step, verb, name, activation, follow, record)
  local holder = holders[step]
  local state, held_by, held_fence, held_message, attempt, first, held_for =
    string.match(record, '^(%a)|([^|]*)|([^|]*)|([^|]*)|([^|]*)|([^|]*)|(.*)$')
  if held_by ~= activation then return 'gone' end
  if state == 'r' then
    if verb == 't' then
      local head = next_of(step)
      taken[#taken + 1] = activation
      return start(step, name, activation, holder, head, attempt, first, follow)
    elseif verb == 'g' and runs[step] == '' then
      return requeue(name, activation, attempt, first)
    end
    return 'gone'
  end
  if state ~= 'h' or held_for ~= holder then return 'gone' end
  local head = call('XRANGE', KEYS[10 + step], held_message, held_message)[1]
  if not head then return 'gone' end
  bodies[step] = body_of(head[2])
  return format('%s|%s|%s|%s', held_fence, held_message, attempt, first)
end

local function perform(step, verb)
  local name, operation, activation = names[step], operations[step], activations[step]
  local record = records[name]
  if not record then return 'gone' end
  local follow = sub(operation, 2, 2)
  if messages[step] and verb ~= 't' then
    local ours = 'h|' .. activation .. '|' .. runs[step] .. '|'
    if sub(record, 1, #ours) == ours then
      return proceed(step, verb, name, activation, follow, lefts[step], record, #ours + 1)
    end
  elseif verb == 't' and record == 'r|' .. activation .. '|||0|0|' then
    local head = next_of(step)
    taken[#taken + 1] = activation
    return start(step, name, activation, holders[step], head, 0, '0', follow)
  end
  return look_again(step, verb, name, activation, follow, record)
end

-- What a step says is told once it has succeeded.
local function tell_what_was_said(done)
  if done then
    for _, event in ipairs(said) do
      if event[1] == 'dead_lettered' or event[1] == 'parked' then event[7] = letter_id end
      tell(unpack(event))
    end
  end
  said = {}
end

local answers = {now_text}
for step = 1, steps do
  local done, answer = pcall(perform, step, sub(operations[step], 1, 1))
  if tell then tell_what_was_said(done) end
  if done then
    answers[2 * step], answers[2 * step + 1] = answer, bodies[step] or false
  else
    answers[2 * step], answers[2 * step + 1] = 'error', type(answer) == 'table' and answer.err or tostring(answer)
  end
end

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
for outcomes, ms in pairs(noted) do
  try('XTRIM', outcomes, 'MINID', '~', format('%.0f', now - ms))
  try('PEXPIRE', outcomes, ms)
end
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
