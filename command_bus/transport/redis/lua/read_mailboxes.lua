-- read_mailboxes: return commands of mailboxes, oldest first, without those that are settled.
--
-- uses: record, lone, settled
--
-- KEYS[1]   active    hash: mailbox name -> record (see shared/record.lua)
-- KEYS[2]   lone      hash: mailbox name -> envelope (see shared/lone.lua)
-- KEYS[3…]  the mailboxes
-- ARGV[1]   prefix    length of the mailbox keys' prefix: what follows it is the mailbox's name
-- ARGV[2]   count     how many of each
-- ARGV[3…]  start     for each mailbox the id of the first that is returned, or '(' and the id before it; -
--           for the oldest
--
-- returns for each its entries, each an id and its fields; none for a key of another type

local active, lone, prefix, count = KEYS[1], KEYS[2], tonumber(ARGV[1]), ARGV[2]

local function read(box, start)
  local name = string.sub(box, prefix + 1)
  local record = redis.call('HGET', active, name)
  if is_lone(record) then
    local id = lone_id(record)
    return (start == '-' or start == id) and {{id, fields_of(lone, name, {FIELD.IN_LONE})}} or {}
  end
  if start == '-' and record then start = running_in(record) or start end
  local entries = redis.pcall('XRANGE', box, start, '+', 'COUNT', count)
  if entries.err then
    return string.find(entries.err, 'WRONGTYPE', 1, true) and {}
      or redis.call('XRANGE', box, start, '+', 'COUNT', count)
  end
  if entries[1] then entries[1][2] = fields_of(lone, name, entries[1][2]) end
  return entries
end

local found = {}
for i = 3, #KEYS do found[i - 2] = read(KEYS[i], ARGV[i]) end
return found
