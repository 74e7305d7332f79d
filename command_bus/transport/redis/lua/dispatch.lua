-- dispatch: open, commit, or note the rejected rows of a dispatch; see load.lua for its commands.
--
-- KEYS[1]   record    hash: the dispatch; `open` is the version being loaded, `done` the highest that is committed
-- KEYS[2]   ids       hash: command id -> check, of the version that is open
-- KEYS[3]   bad       hash: key of a row -> why it was rejected
-- KEYS[4]   index     sorted set: dispatch id -> ms when it is forgotten
-- ARGV[1]   verb      open, commit, reject
-- ARGV[2]   version
-- ARGV[3]   name      the dispatch id
-- ARGV[4]   ms after which a dispatch that nobody touches is forgotten
-- ARGV[5…]  open      owner, ms and number of outcomes that are kept (0: none), what is dispatched
--           commit    summary
--           reject    limit of rejects (-1: none); then for each row its key and its record
--
-- returns open     'open', 'done' if the version is committed, 'foreign' if the dispatch belongs to another owner
--         commit   'done', or 'gone' if the version is neither open nor committed
--         reject   'open' or 'full' (more than the limit are known: none of these was noted); 'done' and 'gone' as for a load

local record, ids, bad, index = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local verb, version, name, ttl = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local function touch()
  redis.call('ZADD', index, now + ttl, name)
  redis.call('ZREMRANGEBYSCORE', index, '-inf', now)
  redis.call('PEXPIRE', record, ttl)
  redis.call('PEXPIRE', bad, ttl)
end

local found = redis.call('HMGET', record, 'open', 'done', 'owner')
local opened, done, owner = found[1], found[2], found[3]
local committed = done and tonumber(done) >= tonumber(version)

if verb == 'open' then
  if owner and owner ~= ARGV[5] then return 'foreign' end
  if committed then return 'done' end
  if opened ~= version then
    redis.call('HSET', record, 'open', version, 'opened_ms', string.format('%.0f', now))
    redis.call('HSETNX', record, 'first_ms', string.format('%.0f', now))
  end
  redis.call('HSET', record, 'name', name, 'owner', ARGV[5], 'keep_ms', ARGV[6], 'keep_max', ARGV[7], 'what', ARGV[8])
  touch()
  return 'open'
end

if verb == 'commit' then
  if committed then return 'done' end
  if opened ~= version then return 'gone' end
  redis.call('HDEL', record, 'open')
  redis.call('HSET', record, 'done', version, 'done_ms', string.format('%.0f', now), 'summary', ARGV[5])
  redis.call('UNLINK', ids)
  touch()
  return 'done'
end

if committed then return 'done' end
if opened ~= version then return 'gone' end
local limit, fresh = tonumber(ARGV[5]), 0
for i = 6, #ARGV, 2 do fresh = fresh + 1 - redis.call('HEXISTS', bad, ARGV[i]) end
if limit >= 0 and redis.call('HLEN', bad) + fresh > limit then return 'full' end
for i = 6, #ARGV, 2 do redis.call('HSET', bad, ARGV[i], ARGV[i + 1]) end
if fresh > 0 then redis.pcall('HINCRBY', record, 'rejected', fresh) end
touch()
return 'open'
