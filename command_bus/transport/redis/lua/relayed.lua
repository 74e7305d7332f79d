-- relayed: delete follow-ups that their shard has taken.
--
-- KEYS[1]  out     stream of follow-ups for one other shard
-- KEYS[2]  due     sorted set of what becomes due, by ms
-- KEYS[3]  stats   hash of counters
-- ARGV[1]  member  of `due` that says that there are some
-- ARGV[2…] ids of entries; perhaps none
--
-- returns how many are left

local ids = {}
for i = 2, #ARGV do ids[i - 1] = ARGV[i] end
if #ids > 0 then
  local deleted = redis.call('XDEL', KEYS[1], unpack(ids))
  redis.pcall('HINCRBY', KEYS[3], 'depth', -deleted)  -- they count in the shard that took them
end
local left = redis.call('XLEN', KEYS[1])
if left == 0 then
  redis.call('DEL', KEYS[1])
  redis.call('ZREM', KEYS[2], ARGV[1])
end
return left
