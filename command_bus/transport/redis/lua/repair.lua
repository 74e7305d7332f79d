-- repair: give back their activation to mailboxes that lost it, because somebody deleted the ready stream or its entries.
--
-- KEYS[1]   ready     stream of activations
-- KEYS[2]   active    hash: mailbox name -> state
-- ARGV[1]   group     of consumers
-- ARGV[2…]  names     of mailboxes to look at
-- returns   how many were repaired
--
-- A command that was running stays so, under a new activation that nobody owns: its old holder is fenced off, whoever reads the activation
-- cannot start it, and when the lease ends the recovery decides by the command's contract.

local ready, active = KEYS[1], KEYS[2]
local repaired = 0

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
  end
end
return repaired
