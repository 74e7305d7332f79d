-- raise_fence: see to it that the next starts of a shard have higher fences than one of another shard.
--
-- uses: memory_limit
--
-- KEYS[1]  ready  stream of activations
-- KEYS[2]  fence  the shard's highest fence
-- ARGV[1]  group  of consumers
-- ARGV[2]  floor  the fence of the other shard; 0: none, it is only read
--
-- returns the shard's highest fence, or its time if that is higher, in a list

pass_memory_limit(KEYS[1], ARGV[1])
local kept = tonumber(redis.call('GET', KEYS[2]) or '') or 0
if kept >= 9007199254740992 then kept = 0 end
local floor = tonumber(ARGV[2])
if floor > kept then redis.call('SET', KEYS[2], ARGV[2]) end
local time = redis.call('TIME')
return {string.format('%.0f', math.max(kept, floor, time[1] * 1000000 + time[2]))}
