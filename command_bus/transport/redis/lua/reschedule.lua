-- reschedule: give a delayed command another time.
--
-- uses: memory_limit, agenda, delayed
--
-- KEYS[1]  ready    stream of activations
-- KEYS[2]  due      sorted set of what becomes due, by ms
-- KEYS[3]  later    hash: mailbox name -> number of delayed commands (see shared/delayed.lua)
-- ARGV[1]  group    of consumers
-- ARGV[2]  command  its id
-- ARGV[3]  at       ms; or + and the ms from now
--
-- returns 1, or 0 if it is not delayed any more

local ready, due, command, at = KEYS[1], KEYS[2], ARGV[2], ARGV[3]

pass_memory_limit(ready, ARGV[1])
local member = due_member(KEYS[3], command)
if not redis.call('ZSCORE', due, member) then return 0 end
if string.sub(at, 1, 1) == '+' then
  local time = redis.call('TIME')
  at = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000) + tonumber(at))
end
set_due(due, ready, member, at)
return 1
