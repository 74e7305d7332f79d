-- postpone: keep delayed commands until they are due. Uses delayed.

-- How many members of `due` are due, and ms of the server's time, once they are known.
local overdue, clock = nil, nil
local first_told, told_of_overdue = nil, false

-- Return the server's time in ms. It stands still while a script runs.
local function now_ms()
  if not clock then
    local time = redis.call('TIME')
    clock = time[1] * 1000 + math.floor(time[2] / 1000)
  end
  return clock
end

-- Return the ms at which a command takes its place. A delay is ms from now; below zero it is the moment
-- itself, which may be past.
local function moment_of(delay)
  return delay < 0 and math.max(-delay, now_ms()) or now_ms() + delay
end

-- Return how many members of `due` are due, or the error if that is none of ours. Members are counted and
-- never read: a producer may not list them.
local function count_overdue(due)
  if not overdue then
    local count = redis.pcall('ZCOUNT', due, '-inf', now_ms())
    if type(count) == 'table' then return count end
    overdue = count
  end
  return overdue
end

-- Return the entry of a delayed command with its flow (see shared/line.lua); a mailbox does not keep that.
local function with_flow(entry, flow)
  if flow == '1' then return entry end
  if string.byte(entry) ~= 0xc1 then entry = '\193e:' .. #entry .. ':' .. entry end
  return entry .. 'f:' .. #flow .. ':' .. flow  -- see shared/entry_text.lua
end

-- Keep a delayed command until a moment; return the error if the server takes nothing. `due`, `delayed` and
-- `delayed_counts` are keys, `entry` is the command as `delayed` keeps it, `lines` what that names of further
-- mailboxes.
local function keep_delayed(ready, due, delayed, delayed_counts, name, id, at, entry, lines)
  local late = count_overdue(due)
  if type(late) == 'table' then return late end
  local kept = redis.pcall('HSET', delayed, id, name .. '\n' .. entry)
  if type(kept) == 'table' then return kept end
  for each in each_line(name, lines) do
    if type(redis.pcall('HINCRBY', delayed_counts, each, 1)) == 'table' then
      redis.pcall('HSET', delayed_counts, each, '1')
    end
  end
  if kept == 1 then
    local number = redis.pcall('HINCRBY', delayed_counts, '*', 1)
    redis.pcall('HSET', delayed_counts, '*' .. id, type(number) == 'number' and number or 0)
  end
  local is_first = not (first_told and first_told <= at) and redis.call('ZCOUNT', due, '-inf', at) == 0
  redis.call('ZADD', due, at, due_member(delayed_counts, id))
  if at <= now_ms() then overdue = late + 1 end
  -- It may be a member that no worker of this release takes.
  local is_overdue = late > 0 and not told_of_overdue
  if is_first or is_overdue then
    first_told, told_of_overdue = is_first and at or first_told, told_of_overdue or is_overdue
    redis.pcall('XADD', ready, '*', 'tick', '1')
  end
end

-- Keep a delayed command as above; return the error also if its mailbox, with the key `box`, is of another
-- type.
local function postpone(ready, due, delayed, delayed_counts, box, name, id, at, entry, lines)
  local length = redis.pcall('XLEN', box)
  if type(length) == 'table' then return length end
  return keep_delayed(ready, due, delayed, delayed_counts, name, id, at, entry, lines)
end

-- Return until when a command that comes now is kept; nil if it takes its place at once. One whose moment is
-- now stands behind delayed ones of its mailbox that may be due, which no worker has let in yet: it is kept
-- with them, and they take their places in the order of their moments. `id` is nil of what is no command of
-- ours; `since` is when a command was accepted that comes later.
local function waits_until(due, delayed, delayed_counts, name, id, delay, since)
  if delay ~= 0 then
    local at = moment_of(delay)
    if at > now_ms() then return at end
  end
  if not id or not tonumber(redis.pcall('HGET', delayed_counts, name)) then return nil end
  local late, last = count_overdue(due),
    tonumber(string.match(redis.pcall('HGET', delayed_counts, name .. '*') or '', '^%d+')) or 0
  local is_ahead = last >= now_ms()  -- the clock went back since
  if (is_ahead or (type(late) == 'number' and late > 0)) and redis.pcall('HEXISTS', delayed, id) == 0 then
    local at = is_ahead and last or math.min(since or now_ms(), now_ms())
    if at >= last then redis.pcall('HSET', delayed_counts, name .. '*', string.format('%.0f|', at) .. id) end
    return at
  end
end

-- Return until when a command of several mailboxes is kept that comes now, or `at`: it stands behind all that
-- is kept in each of them. `lines` names the further ones.
local function stands_until(due, delayed, delayed_counts, name, id, lines, at)
  for each in each_line(name, lines) do
    local there = waits_until(due, delayed, delayed_counts, each, id, 0)
    at = there and math.max(at or there, there) or at
  end
  for each in each_line(name, at and lines) do
    if at then redis.pcall('HSET', delayed_counts, each .. '*', string.format('%.0f|', at) .. id) end
  end
  return at
end

-- Return the envelope of a command that a handler sends, and the further mailboxes that it names, nil if it
-- names none: then it is the text of an entry. It is kept, due at once: what lets it in writes all its lines.
local function parts_sent(text)
  local length, from = string.match(text, '^\193e:(%d+):()')
  if not length then return text, nil end
  return string.sub(text, from, from + length - 1), lines_kept('\n' .. text)
end
