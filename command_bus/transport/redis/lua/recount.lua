-- recount: compare the counters of a shard with what is there, and correct them. It is one step, so it is
-- exact while commands come and go.
--
-- uses: memory_limit, record, newer, lone, delayed
--
-- KEYS[1]   ready     stream of activations
-- KEYS[2]   active    hash: mailbox name -> record (see shared/record.lua)
-- KEYS[3]   stats     hash of counters
-- KEYS[4]   delayed   hash: command id -> mailbox name, newline, entry (see shared/entry_text.lua)
-- KEYS[5]   later     hash: mailbox name -> number of delayed commands (see shared/delayed.lua)
-- KEYS[6…]  the streams of follow-ups for other shards, then the mailboxes that were seen in `active`
-- ARGV[1]   group     of consumers
-- ARGV[2]   prefix    length of the mailbox keys' prefix: what follows it is the mailbox's name
-- ARGV[3]   most      mailboxes with work, and delayed commands, that are counted in one step
-- ARGV[4]   bytes     of delayed commands that are read in one step
-- ARGV[5]   correct   '1', or '0' to compare only
-- ARGV[6]   outs      how many streams of follow-ups
--
-- returns {'changed'} if a mailbox has commands that was not seen: ask again with it; {'many'} if there is
-- too much for one step; {'newer'} if
--         one is in a state that only a later release knows; else {the stored depth, the counted one,
--         mailboxes whose number of delayed commands was wrong, or -1 if these were not counted, because they
--         are too large}

local active, stats, delayed, later = KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local most = tonumber(ARGV[3])
if redis.call('HLEN', active) > most or redis.call('HLEN', delayed) > most then return {'many'} end

local boxes = {}
for key = 6 + ARGV[6], #KEYS do boxes[string.sub(KEYS[key], ARGV[2] + 1)] = KEYS[key] end

-- Return how many commands of a mailbox are not settled; nil and why if that cannot be told.
local function unsettled(name, record)
  -- Else no release has written it.
  if is_newer(record) and string.find(record, '^%a+|') then return nil, 'newer' end
  if is_lone(record) then return 1 end
  local box = boxes[name]
  if not box then return nil, 'changed' end
  local length = redis.pcall('XLEN', box)
  if type(length) ~= 'number' then return 0 end  -- of another type: it holds no command
  local state, _, _, message = parse_record(record)
  if state ~= STATE.HELD and state ~= STATE.HELD_AND_CHANGED then return length end
  return length - #redis.pcall('XRANGE', box, '-', '(' .. message, 'COUNT', 100)  -- fewer than are read ahead
end

local depth = redis.call('HLEN', delayed)
for key = 6, 5 + ARGV[6] do
  local length = redis.pcall('XLEN', KEYS[key])
  depth = depth + (type(length) == 'number' and length or 0)  -- of another type: it holds no command
end
local records = redis.call('HGETALL', active)
for i = 1, #records, 2 do
  local count, why = unsettled(records[i], records[i + 1])
  if not count then return {why} end
  depth = depth + count
end

-- Return the number of delayed commands by mailbox; nil if there is too much to read.
local function delayed_by_mailbox()
  local counts, bytes = {}, 0
  local ids = redis.call('HKEYS', delayed)
  for _, id in ipairs(ids) do bytes = bytes + redis.call('HSTRLEN', delayed, id) end
  if bytes > tonumber(ARGV[4]) then return nil end
  for _, id in ipairs(ids) do
    local name, entry = string.match(redis.call('HGET', delayed, id), '^([^\n]*)\n?(.*)')
    counts[name] = (counts[name] or 0) + 1
    for other in lines_of(entry) do counts[other] = (counts[other] or 0) + 1 end
  end
  return counts
end

local counts, wrong, fields, seen = delayed_by_mailbox(), 0, {}, {}
if counts then
  local stored = redis.call('HGETALL', later)
  for i = 1, #stored, 2 do
    local name = stored[i]
    if string.sub(name, 1, 1) == '*' then  -- the number of a command, see shared/delayed.lua
      if name ~= '*' and redis.call('HEXISTS', delayed, string.sub(name, 2)) == 0 then fields[name] = 0 end
    elseif string.sub(name, -1) == '*' then  -- what stands behind delayed ones
      if not counts[string.sub(name, 1, -2)] then fields[name] = 0 end
    else
      seen[name] = true
      if tonumber(stored[i + 1]) ~= counts[name] then
        wrong = wrong + 1
        fields[name] = counts[name] or 0
      end
    end
  end
  for name, count in pairs(counts) do
    if not seen[name] then
      wrong = wrong + 1
      fields[name] = count
    end
  end
end

local before = redis.call('HGET', stats, 'depth')
if ARGV[5] == '1' then
  pass_memory_limit(KEYS[1], ARGV[1])
  if tonumber(before or '0') ~= depth then redis.call('HSET', stats, 'depth', depth) end
  for name, count in pairs(fields) do
    if count > 0 then redis.call('HSET', later, name, count) else redis.call('HDEL', later, name) end
  end
end
return {tonumber(before or '0') or 0, depth, counts and wrong or -1}
