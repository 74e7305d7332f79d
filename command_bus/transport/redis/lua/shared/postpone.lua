-- postpone: keep delayed commands until they are due.

local first_due = nil  -- ms of the earliest member of `due`, once it is known

-- Return the entry of a delayed command with its flow (see shared/line.lua); a mailbox does not keep that.
local function with_flow(entry, flow)
  if flow == '1' then return entry end
  if string.byte(entry) ~= 0xc1 then entry = '\193e:' .. #entry .. ':' .. entry end
  return entry .. 'f:' .. #flow .. ':' .. flow  -- see shared/entry_text.lua
end

-- Keep a delayed command; return the error if the server takes nothing. `due`, `delayed` and `delayed_counts` are keys, `entry` is the command
-- as `delayed` keeps it.
local function keep_delayed(ready, due, delayed, delayed_counts, name, id, delay, entry)
  local time = redis.call('TIME')
  local at = time[1] * 1000 + math.floor(time[2] / 1000) + delay
  if not first_due then
    local head = redis.pcall('ZRANGE', due, 0, 0, 'WITHSCORES')
    if head.err then return head end
    first_due = tonumber(head[2] or '9007199254740991')
  end
  local kept = redis.pcall('HSET', delayed, id, name .. '\n' .. entry)
  if type(kept) == 'table' then return kept end
  if type(redis.pcall('HINCRBY', delayed_counts, name, 1)) == 'table' then redis.pcall('HSET', delayed_counts, name, '1') end
  redis.call('ZADD', due, at, 'd:' .. id)
  if at < first_due or first_due <= at - delay then  -- what is overdue may be a member that no worker of this release takes
    first_due = at
    redis.pcall('XADD', ready, '*', 'tick', '1')
  end
end

-- Keep a delayed command as above; return the error also if its mailbox, with the key `box`, is of another type.
local function postpone(ready, due, delayed, delayed_counts, box, name, id, delay, entry)
  local length = redis.pcall('XLEN', box)
  if type(length) == 'table' then return length end
  return keep_delayed(ready, due, delayed, delayed_counts, name, id, delay, entry)
end
