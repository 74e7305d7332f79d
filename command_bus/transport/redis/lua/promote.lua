-- promote: move what has become due: delayed commands enter their mailbox, retries become ready.
--
-- uses: memory_limit, record, newer, lone, snooze, entry_text, holds
-- uses: open_line(line_flow, line_runs, line_turns, line_served, line), delayed, unique
-- uses: open_several(several)
--
-- KEYS[1]   ready     stream of activations
-- KEYS[2]   active    hash: mailbox name -> record (see shared/record.lua)
-- KEYS[3]   due       sorted set of what becomes due, by ms
-- KEYS[4]   delayed   hash: command id -> mailbox name, newline, entry (see shared/entry_text.lua)
-- KEYS[5]   later     hash: mailbox name -> number of delayed commands (see shared/delayed.lua)
-- KEYS[6]   paused    hash: scope -> mode|since in ms|why (see shared/holds.lua)
-- KEYS[7]   unique    hash: key -> the command that holds it (see shared/unique.lua)
-- KEYS[8]   flows     hash: what classes and shares have used (see shared/line.lua); this and the next two
--                     may not exist
-- KEYS[9]   turns     sorted set of flows, by their virtual time
-- KEYS[10]  line      sorted set of the places of entities that wait
-- KEYS[11]  suspended  hash: mailbox name -> the durable command that waits (see shared/arrive.lua)
-- KEYS[12]  stats     hash of counters
-- KEYS[13]  lone      hash: mailbox name -> envelope (see shared/lone.lua)
-- KEYS[14…] the mailbox of each member
-- ARGV[1]   group     of consumers
-- ARGV[2]   known     first letters of the members of `due` that the worker knows
-- ARGV[3…]  for each member: the member of `due` (r:<mailbox name> or that of a delayed command, see
--           shared/delayed.lua), its mailbox name, its score as it was read
--
-- returns {how many were promoted, ms until the next is due or -1, the members that were left}
--
-- Each member is checked again here, so that several workers may promote at once. A member whose score is
-- still what was read is promoted even if the score lies ahead: the server's clock has gone back, and the
-- worker has waited for it by its own clock. A command whose mailbox takes nothing stays delayed for another
-- second. After the first write nothing fails.
--
-- Members that only a later release knows are left, and so is the retry of a mailbox in a state that only
-- that knows.

local ready, active, due, delayed, delayed_counts, paused, unique =
  KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7]
pass_memory_limit(ready, ARGV[1])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local is_special = redis.call('EXISTS', paused, KEYS[8]) > 0
local any_paused = is_special and redis.call('EXISTS', paused) == 1
local queue_up = is_special and redis.call('EXISTS', KEYS[8]) == 1
  and open_line(ready, active, KEYS[8], KEYS[9], KEYS[10])

local lines = {ready = ready, active = active, lone = KEYS[13], paused = any_paused and paused}

local function wake(name, attempt, first, parts, box)
  local held = any_paused and holds_of(paused, name)
  redis.call('HSET', active, name,
    held and pack_record(STATE.STOPPED, '', attempt, first, parts)
    or queue(ready, name, attempt, first, parts, lined and box and lined.head_of(box)))
end

local function retry(name, member, box)
  local record = redis.call('HGET', active, name)
  if is_newer(record) then return false end
  redis.call('ZREM', due, member)
  local state, _, _, message, attempt, first, _, parts = parse_record(record or '')
  if state == STATE.RETRYING then
    wake(name, attempt, woken(first, parts), parts, box)
  elseif state == STATE.SUSPENDED or state == STATE.LONE_SUSPENDED then
    redis.call('HDEL', KEYS[11], name)
    first, parts = '-' .. string.format('%.0f', now), parts .. '|paid=' .. message
    if state == STATE.LONE_SUSPENDED and (lined or (any_paused and holds_of(paused, name)))
      and line_up(active, box, name, record) then
      state = STATE.SUSPENDED
    end
    if state == STATE.SUSPENDED then
      wake(name, attempt, first, parts, box)
    else
      redis.call('HSET', active, name, queue_alone(ready, name, message, first, parts))
    end
  end
  return true
end

-- Return the fields of an entry, and its flow, which a mailbox does not keep.
local function entry_of(text)
  local fields, flow = fields_in(text), '1'
  for i = #fields - 1, 1, -2 do
    if fields[i] == FIELD.FLOW then
      flow = stored_flow(fields[i + 1])
      table.remove(fields, i)
      table.remove(fields, i)
    end
  end
  return fields, flow
end

-- Forget that a command is the last that stands behind delayed ones of a mailbox.
local function stands_no_more(name, id)
  local last = redis.call('HGET', delayed_counts, name .. '*')
  if last and string.match(last, '|(.*)$') == id then redis.call('HDEL', delayed_counts, name .. '*') end
end

-- Put a delayed command into its mailbox, accepted at its moment; return false if that takes nothing. A
-- mailbox whose ids are used up is woken: the worker that empties it deletes it.
local function admit(id, name, box, at)
  local value = redis.call('HGET', delayed, id)
  if not value then return true end
  local cut = string.find(value, '\n', 1, true)
  if not cut or string.sub(value, 1, cut - 1) ~= name then return true end
  local record = redis.call('HGET', active, name)
  local lined_up, fault = line_up(active, box, name, record)
  local fields, flow = entry_of(string.sub(value, cut + 1))
  local _, key = without_key(fields)
  local several = not fault and #fields > 2 and open_several(lines)
  local places = several and several.join_all(fields, name, box, flow)
  if several and not places then return false end
  local added = fault or redis.pcall('XADD', box, string.format('%.0f-*', math.min(at, now)), unpack(fields))
  -- Another came behind its moment.
  if not fault and type(added) == 'table' then added = redis.pcall('XADD', box, '*', unpack(fields)) end
  if several and type(added) == 'table' then several.free_all(fields, name, box) end
  if type(added) == 'string' then
    if places and places > 0 then redis.pcall('HINCRBY', KEYS[12], 'depth', places) end
    if key then move_stander(unique, key, 'd:' .. id, added) end
    redis.call('HDEL', delayed, id)
    local entry = string.sub(value, cut + 1)
    count_down_delayed(delayed_counts, name, id, entry)
    stands_no_more(name, id)
    for other in lines_of(entry) do stands_no_more(other, id) end
    if record and queue_up then
      redis.call('HSET', active, name, queue_up.noted(lined_up, name, flow, added, box))
    end
  elseif not string.find(tostring(added.err), ' ID', 1, true) then
    return false
  end
  if not record then
    wake(name, '0', '0', queue_up and type(added) == 'string' and queue_up.parts_of(flow) or nil)
  end
  return type(added) == 'string'
end

local promoted, left = 0, {}
local key = 13
for arg = 3, #ARGV, 3 do
  local member, name = ARGV[arg], ARGV[arg + 1]
  key = key + 1
  local score = redis.call('ZSCORE', due, member)
  if score and (tonumber(score) <= now or tonumber(score) == tonumber(ARGV[arg + 2])) then
    local kind = string.sub(member, 1, 2)
    if kind ~= 'd:' then
      if kind == 'r:' and retry(name, member, KEYS[key]) then
        promoted = promoted + 1
      else
        left[#left + 1] = member
      end
    elseif admit(string.match(member, '^d:%d+:(.*)$') or '', name, KEYS[key], tonumber(score)) then
      redis.call('ZREM', due, member)
      promoted = promoted + 1
    else
      redis.call('ZADD', due, now + 1000, member)  -- tried again, nothing is lost
    end
  end
end

if queue_up then queue_up.finish() end
local head = redis.call('ZRANGE', due, 0, 0, 'WITHSCORES')
local known = head[1] and string.find(head[1], '^[' .. ARGV[2] .. ']:')
return {promoted, known and math.max(tonumber(head[2]) - now, 0) or -1, left}
