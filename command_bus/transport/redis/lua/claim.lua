-- claim: take over leases that were not renewed since they were read.
--
-- uses: memory_limit
--
-- KEYS[1]   ready     stream of activations; its pending entries are the leases
-- ARGV[1]   group     of consumers
-- ARGV[2]   owner     consumer name of the worker that takes them
-- ARGV[3]   idle      ms for which they must be idle by the server's clock; 0 where that clock has gone back
-- ARGV[4…]  for each lease: the activation, its renewal sequence as it was read
--
-- returns {activation, its fields} of each that was taken

local ready, group, owner, idle = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local taken = {}
pass_memory_limit(ready, group)
for arg = 4, #ARGV, 2 do
  local pending = redis.call('XPENDING', ready, group, ARGV[arg], ARGV[arg], 1)[1]
  if pending and pending[4] == tonumber(ARGV[arg + 1]) then
    local entry = redis.call('XCLAIM', ready, group, owner, idle, ARGV[arg])[1]
    if entry then taken[#taken + 1] = entry end
  end
end
return taken
