-- claim: take over leases that were not renewed since they were read.
--
-- uses: memory_limit, newer
--
-- KEYS[1]   ready     stream of activations; its pending entries are the leases
-- KEYS[2]   active    hash: mailbox name -> record (see shared/record.lua)
-- ARGV[1]   group     of consumers
-- ARGV[2]   owner     consumer name of the worker that takes them
-- ARGV[3]   idle      ms for which they must be idle by the server's clock; 0 where that clock has gone back
-- ARGV[4…]  for each lease: the activation, its renewal sequence as it was read
--
-- returns {activation, its fields} of each that was taken; those of mailboxes in a state that only a later
-- release knows are left to that

local ready, active = KEYS[1], KEYS[2]
local group, owner, idle = ARGV[1], ARGV[2], ARGV[3]
local taken = {}

-- Return whether an activation is of a mailbox that only a later release can settle.
local function is_of_newer(activation)
  local entry = redis.call('XRANGE', ready, activation, activation)[1]
  if not entry then return false end
  for i = 1, #entry[2], 2 do
    if entry[2][i] == FIELD.ENVELOPE then return is_newer(redis.call('HGET', active, entry[2][i + 1])) end
  end
  return false
end

pass_memory_limit(ready, group)
for arg = 4, #ARGV, 2 do
  local pending = redis.call('XPENDING', ready, group, ARGV[arg], ARGV[arg], 1)[1]
  if pending and pending[4] == tonumber(ARGV[arg + 1]) and not is_of_newer(ARGV[arg]) then
    local entry = redis.call('XCLAIM', ready, group, owner, idle, ARGV[arg])[1]
    if entry then taken[#taken + 1] = entry end
  end
end
return taken
