-- repair: give an activation to mailboxes that should have one: somebody deleted the ready stream or its entries, or whoever
-- resumed them did not live to wake them all.
--
-- KEYS[1]   ready     stream of activations
-- KEYS[2]   active    hash: mailbox name -> state
-- KEYS[3]   paused    hash: scope -> mode|since in ms|why (see operate.lua)
-- KEYS[4]   parked    hash: mailbox name -> id of its dead letter
-- ARGV[1]   group     of consumers
-- ARGV[2…]  names     of mailboxes to look at
-- returns   how many were repaired
--
-- A command that was running stays so, under a new activation that nobody owns: its old holder is fenced off, whoever reads the activation
-- cannot start it, and when the lease ends the recovery decides by the command's contract.

local ready, active, paused, parked = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local repaired = 0

local function stopped(name)
  for _, value in ipairs(redis.call('HMGET', paused, name, string.match(name, '^[^:/]*') .. ':*', '*')) do
    if value and string.sub(value, 1, 2) ~= 'd|' then return true end
  end
  return false
end

redis.call('XACK', ready, ARGV[1], '0-0')
for i = 2, #ARGV do
  local name = ARGV[i]
  local record = redis.call('HGET', active, name)
  local state, activation, rest = string.match(record or '', '^([rh])|([^|]*)|(.*)$')
  if state and not redis.call('XRANGE', ready, activation, activation)[1] then
    local id = redis.call('XADD', ready, '*', 'e', name)
    if state == 'h' then rest = string.gsub(rest, '[^|]*$', '') end
    redis.call('HSET', active, name, state .. '|' .. id .. '|' .. rest)
    repaired = repaired + 1
  elseif record and string.sub(record, 1, 1) == 's' and redis.call('HEXISTS', parked, name) == 0 and not stopped(name) then
    local id = redis.call('XADD', ready, '*', 'e', name)
    redis.call('HSET', active, name, 'r|' .. id .. string.gsub(record, '^s|[^|]*', '', 1))
    repaired = repaired + 1
  end
end
return repaired
