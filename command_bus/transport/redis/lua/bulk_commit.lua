-- bulk_commit: open or commit a version of a dispatch, note its rejected rows, or note what holds it up.
-- bulk_load.lua loads its commands.
--
-- KEYS[1]   record    hash: the dispatch; `open` is the version being loaded, `done` the highest that is
--                     committed
-- KEYS[2]   ids       hash: command id -> check, of the version that is open
-- KEYS[3]   bad       hash: key of a row -> record of why it was rejected
-- KEYS[4]   index     sorted set: dispatch id -> ms when it expires
-- KEYS[5]   homes     hash: entity -> the task that writes its commands, of the version that is open
-- KEYS[6]   prints    hash: version -> fingerprint of its rows, of the last thousand versions or so (first
--                     shard only)
-- ARGV[1]   verb      open, commit, reject, note, amend
-- ARGV[2]   version
-- ARGV[3]   name      the dispatch id
-- ARGV[4]   ms after which a dispatch expires that no task uses
-- ARGV[5…]  open      owner, for how many ms and how many outcomes are kept (0: none), what is dispatched
--           commit    summary, fingerprint of the rows (empty: none is kept here)
--           note      what holds a task up, for the driver
--           amend     for each rejected row its key and the record that it has from now on
--           reject    limit of rejects (-1: none); then for each row its key and its record
--
-- returns open     'open', 'done' if the version is committed, 'foreign' if the dispatch belongs to another
--                  owner
--         commit   'done', or 'gone' if the version is neither open nor committed
--         amend    'open'
--         note     'open', or 'gone' if the version is not open
--         reject   'open' or 'full' (there would be more than the limit: none of these was noted); 'done' and
--                  'gone' as for a load

local record, ids, bad, index, homes, prints = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local verb, version, name, ttl = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local function touch()
  redis.call('ZADD', index, now + ttl, name)
  redis.call('ZREMRANGEBYSCORE', index, '-inf', now)
  redis.call('PEXPIRE', record, ttl)
  redis.call('PEXPIRE', bad, ttl)
  redis.call('PEXPIRE', prints, ttl)
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
  redis.call('HSET', record, 'name', name, 'owner', ARGV[5], 'keep_ms', ARGV[6], 'keep_max', ARGV[7], 'what',
    ARGV[8])
  touch()
  return 'open'
end

if verb == 'commit' then
  if committed then return 'done' end
  if opened ~= version then return 'gone' end
  redis.call('HDEL', record, 'open', 'note')
  redis.call('HSET', record, 'done', version, 'done_ms', string.format('%.0f', now), 'summary', ARGV[5])
  redis.call('UNLINK', ids, homes)
  if ARGV[6] and ARGV[6] ~= '' then
    if redis.call('HLEN', prints) >= 2000 then redis.call('UNLINK', prints) end -- version numbers that leap
    redis.call('HDEL', prints, string.format('%.0f', tonumber(version) - 1000))
    redis.call('HSET', prints, version, ARGV[6])
  end
  touch()
  return 'done'
end

if verb == 'amend' then
  for i = 5, #ARGV, 2 do
    if redis.call('HEXISTS', bad, ARGV[i]) == 1 then redis.call('HSET', bad, ARGV[i], ARGV[i + 1]) end
  end
  return 'open'
end

if verb == 'note' then
  if opened ~= version then return 'gone' end
  redis.call('HSET', record, 'note', ARGV[5])
  return 'open'
end

if committed then return 'done' end
if opened ~= version then return 'gone' end
local limit, fresh, seen = tonumber(ARGV[5]), 0, {}
for i = 6, #ARGV, 2 do -- equal rows are one, also within a request
  if not seen[ARGV[i]] then fresh = fresh + 1 - redis.call('HEXISTS', bad, ARGV[i]) end
  seen[ARGV[i]] = true
end
if limit >= 0 and redis.call('HLEN', bad) + fresh > limit then return 'full' end
for i = 6, #ARGV, 2 do redis.call('HSETNX', bad, ARGV[i], ARGV[i + 1]) end -- it may have been amended
if fresh > 0 then redis.pcall('HINCRBY', record, 'rejected', fresh) end
touch()
return 'open'
