-- schedule_bar: let no firing of a schedule up to a number into this shard any more.
--
-- KEYS[1]  fired        hash: schedule -> incarnation:number of its last firing in this shard
-- ARGV[1]  schedule
-- ARGV[2]  incarnation  of the schedule
-- ARGV[3]  number
--
-- returns 1, or 0 if that number or a later one was fired before

local kept, last = string.match(redis.call('HGET', KEYS[1], ARGV[1]) or '', '^(.*):(%d+)$')
if kept == ARGV[2] and tonumber(last) >= tonumber(ARGV[3]) then return 0 end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2] .. ':' .. ARGV[3])
return 1
