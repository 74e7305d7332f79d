-- delayed: the hash `later`: mailbox name -> number of delayed commands; * and a command id -> its number; *
-- -> the last number given; a mailbox name and * -> ms|id of the latest that is kept only to stand behind
-- delayed commands, until that enters its mailbox.
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

-- Return a function that goes through the mailboxes that a delayed command will enter: its own, and those
-- that its entry names (see shared/several.lua). All of them count it.
local function each_line(name, lines) return string.gmatch(name .. '= ' .. (lines or ''), '(%S+)=') end

-- Return the further mailboxes that a value of `delayed` names; nil if it names none.
local function lines_kept(value)
  local at = string.match(value, '^[^\n]*\n\193()')
  while at do
    local field, length, from = string.match(value, '^([^:]+):(%d+):()', at)
    if not field then return nil end
    if field == FIELD.LINES then return string.sub(value, from, from + length - 1) end
    at = from + length
  end
end

-- Count one delayed command less. Called behind the first write, so it does not fail.
local function count_down_delayed(delayed_counts, name, id, lines)
  for each in each_line(name, lines) do
    local left = redis.pcall('HINCRBY', delayed_counts, each, -1)
    if type(left) ~= 'number' or left <= 0 then redis.pcall('HDEL', delayed_counts, each, each .. '*') end
  end
  redis.pcall('HDEL', delayed_counts, '*' .. id)
  if redis.pcall('HLEN', delayed_counts) == 1 then redis.pcall('HDEL', delayed_counts, '*') end
end

-- Take a delayed command away; return whether it was there. `value` is what `delayed` has of it, if that is
-- known: a producer, who may not read it, takes none of several entities away.
local function take_delayed(due, delayed, delayed_counts, name, id, value)
  if redis.call('HDEL', delayed, id) == 0 then return false end
  redis.call('ZREM', due, due_member(delayed_counts, id))
  count_down_delayed(delayed_counts, name, id, value and lines_kept(value))
  return true
end
