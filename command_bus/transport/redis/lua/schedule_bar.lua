-- schedule_bar: let no firing of a schedule up to a number into this shard any more.
--
-- uses: incarnation
--
-- KEYS[1]  fired        hash: schedule -> incarnation:number of its last firing in this shard
-- KEYS[2]  stats        hash of counters, with the shard's incarnation
-- ARGV[1]  shard        its incarnation, as it was read
-- ARGV[2]  schedule
-- ARGV[3]  incarnation  of the schedule
-- ARGV[4]  number
--
-- returns 1, or 0 if that number or a later one was fired before; 'gone' if the shard is of another
-- incarnation

if is_of_another_time(KEYS[2], ARGV[1]) then return 'gone' end
local kept, last = string.match(redis.call('HGET', KEYS[1], ARGV[2]) or '', '^(.*):(%d+)$')
if kept == ARGV[3] and tonumber(last) >= tonumber(ARGV[4]) then return 0 end
redis.call('HSET', KEYS[1], ARGV[2], ARGV[3] .. ':' .. ARGV[4])
return 1
