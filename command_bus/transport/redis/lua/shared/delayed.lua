-- delayed: the hash `later`: mailbox name -> number of delayed commands; * and a command id -> its number; *
-- -> the last number given; a mailbox name and * -> ms|id of the latest that is kept only to stand behind
-- delayed commands, until that enters its mailbox. A command of several entities counts in each of its lines:
-- who comes later in one of them stands behind it.
--
-- Delayed commands are numbered in the order of their acceptance, and the member of `due` begins with the
-- number: those that become due in one millisecond are sorted by it. No mailbox's name has a *.

-- Return a flow as it was stored (see shared/line.lua); the normal class without a tenant if that is none.
local function stored_flow(text)
  return string.find(text, '^[012][%w_.@~%%-]*$') and text or '1'
end

-- Return the member of `due` of a delayed command: d:<number, in 16 digits>:<command id>.
local function due_member(delayed_counts, id)
  local number = redis.pcall('HGET', delayed_counts, '*' .. id)
  return string.format('d:%016.0f:', type(number) == 'string' and tonumber(number) or 0) .. id
end

-- Return a function that goes over the further lines in which a command will stand, by its entry as `delayed`
-- has it (see shared/entry_text.lua): the field `w` stands behind the envelope and the unique key.
local function lines_of(entry)
  local size, from = string.match(entry, '^\193e:(%d+):()')
  local rest = size and string.sub(entry, from + size) or ''
  local key, behind = string.match(rest, '^u:(%d+):()')
  if key then rest = string.sub(rest, behind + key) end
  local length, first = string.match(rest, '^w:(%d+):()')
  return string.gmatch(length and string.sub(rest, first, first + length - 1) or '', '(%S+)= ')
end

local function count_down(delayed_counts, name)
  local left = redis.pcall('HINCRBY', delayed_counts, name, -1)
  if type(left) ~= 'number' or left <= 0 then redis.pcall('HDEL', delayed_counts, name, name .. '*') end
end

-- Count one delayed command less; `entry` is what it was kept as. Called behind the first write, so it does
-- not fail.
local function count_down_delayed(delayed_counts, name, id, entry)
  count_down(delayed_counts, name)
  for other in lines_of(entry) do count_down(delayed_counts, other) end
  redis.pcall('HDEL', delayed_counts, '*' .. id)
  if redis.pcall('HLEN', delayed_counts) == 1 then redis.pcall('HDEL', delayed_counts, '*') end
end

-- Take a delayed command away; return whether it was there. A sender may not read it, and gives no entry:
-- what it replaces stands in one line.
local function take_delayed(due, delayed, delayed_counts, name, id, entry)
  if redis.call('HDEL', delayed, id) == 0 then return false end
  redis.call('ZREM', due, due_member(delayed_counts, id))
  count_down_delayed(delayed_counts, name, id, entry or '')
  return true
end
