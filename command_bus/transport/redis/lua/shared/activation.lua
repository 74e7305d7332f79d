-- activation: put a mailbox into the ready stream. Uses record.

-- Return the record of a mailbox that is now ready. A script may have written already, so this must not fail: if the ready stream takes
-- nothing, the record names an entry that does not exist, as if the entry had been lost. `reactivate.lua` repairs that.
local function queue(ready, name, attempt, first)
  local added = redis.pcall('XADD', ready, '*', 'e', name)
  return pack_record('r', type(added) == 'string' and added or '0-0', attempt, first)
end

