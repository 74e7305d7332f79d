-- promote: move what has become due: delayed commands enter their mailbox, retries become ready.
--
-- uses: memory_limit, record, newer, lone, snooze, entry_text, holds, delayed
--
-- KEYS[1]   ready     stream of activations
-- KEYS[2]   active    hash: mailbox name -> record (see shared/record.lua)
-- KEYS[3]   due       sorted set of what becomes due, by ms
-- KEYS[4]   delayed   hash: command id -> mailbox name, newline, entry (see shared/entry_text.lua)
-- KEYS[5]   later     hash: mailbox name -> number of delayed commands
-- KEYS[6]   paused    hash: scope -> mode|since in ms|why (see shared/holds.lua)
-- KEYS[7…]  the mailbox of each member
-- ARGV[1]   group     of consumers
-- ARGV[2]   known     first letters of the members of `due` that the worker knows
-- ARGV[3…]  for each member: the member of `due` (r:<mailbox name> or d:<command id>), its mailbox name, its score as it was read
--
-- returns {how many were promoted, ms until the next is due or -1, the members that were left}
--
-- Each member is checked again here, so that several workers may promote at once. A member whose score is still what was read is promoted
-- even if the score lies ahead: the server's clock has gone back, and the worker has waited for it by its own clock. A command whose mailbox
-- takes nothing stays delayed for another second. After the first write nothing fails.
--
-- Members that only a later release knows are left, and so is the retry of a mailbox in a state that only that knows.

local ready, active, due, delayed, delayed_counts, paused = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
pass_memory_limit(ready, ARGV[1])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local any_paused = redis.call('EXISTS', paused) == 1
local function wake(name, attempt, first, parts)
  local held = any_paused and holds_of(paused, name)
  redis.call('HSET', active, name, held and pack_record('s', '', attempt, first, parts) or queue(ready, name, attempt, first, parts))
end

local function retry(name, member)
  local record = redis.call('HGET', active, name)
  if is_newer(record) then return false end
  redis.call('ZREM', due, member)
  local state, _, _, _, attempt, first, _, parts = parse_record(record or '')
  if state == 'w' then wake(name, attempt, woken(first, parts), parts) end
  return true
end

-- Put a delayed command into its mailbox; return false if that takes nothing. A mailbox whose ids are used up is woken: the worker that
-- empties it deletes it.
local function admit(id, name, box)
  local value = redis.call('HGET', delayed, id)
  if not value then return true end
  local cut = string.find(value, '\n', 1, true)
  if not cut or string.sub(value, 1, cut - 1) ~= name then return true end
  local record = redis.call('HGET', active, name)
  local _, fault = line_up(active, box, name, record)
  local added = fault or redis.pcall('XADD', box, '*', unpack(fields_in(string.sub(value, cut + 1))))
  if type(added) == 'string' then
    redis.call('HDEL', delayed, id)
    count_down_delayed(delayed_counts, name)
  elseif not string.find(tostring(added.err), ' ID', 1, true) then
    return false
  end
  if not record then wake(name, '0', '0') end
  return type(added) == 'string'
end

local promoted, left = 0, {}
local key = 6
for arg = 3, #ARGV, 3 do
  local member, name = ARGV[arg], ARGV[arg + 1]
  key = key + 1
  local score = redis.call('ZSCORE', due, member)
  if score and (tonumber(score) <= now or tonumber(score) == tonumber(ARGV[arg + 2])) then
    local kind = string.sub(member, 1, 2)
    if kind ~= 'd:' then
      if kind == 'r:' and retry(name, member) then
        promoted = promoted + 1
      else
        left[#left + 1] = member
      end
    elseif admit(string.sub(member, 3), name, KEYS[key]) then
      redis.call('ZREM', due, member)
      promoted = promoted + 1
    else
      redis.call('ZADD', due, now + 1000, member)  -- tried again, nothing is lost
    end
  end
end

local head = redis.call('ZRANGE', due, 0, 0, 'WITHSCORES')
local known = head[1] and string.find(head[1], '^[' .. ARGV[2] .. ']:')
return {promoted, known and math.max(tonumber(head[2]) - now, 0) or -1, left}
