-- sweep_unique: release unique keys whose command is gone: it could not be read when it was settled, or
-- another program has deleted it.
--
-- uses: record, newer, lone, unique
--
-- KEYS[1]   unique    hash: key -> the command that holds it (see shared/unique.lua)
-- KEYS[2]   active    hash: mailbox name -> record (see shared/record.lua)
-- KEYS[3]   delayed   hash: command id -> mailbox name, newline, entry (see shared/entry_text.lua)
-- KEYS[4…]  the mailbox of each key
-- ARGV[1]   prefix    length of the mailbox keys' prefix: what follows it is the mailbox's name
-- ARGV[2…]  keys
--
-- returns how many were released
--
-- Unlike a producer, this looks into the mailboxes. A key is held to the end of its window in any case.

local unique, active, delayed, prefix = KEYS[1], KEYS[2], KEYS[3], tonumber(ARGV[1])
local time = redis.call('TIME')
local now, released = time[1] * 1000 + math.floor(time[2] / 1000), 0

local function is_held(value, box)
  local place, window = parse_stander(value)
  if not place or (tonumber(window) or 0) > now then return place ~= nil end
  if not standing(value, redis.call('HGET', active, string.sub(box, prefix + 1)), delayed, now) then
    return false
  end
  -- What is no id names none.
  return place == PLACE.DELAYED or redis.pcall('XRANGE', box, place, place)[1] ~= nil
end

for i = 2, #ARGV do
  local value = redis.call('HGET', unique, ARGV[i])
  if value and not is_held(value, KEYS[i + 2]) then
    released = released + redis.call('HDEL', unique, ARGV[i])
  end
end
return released
