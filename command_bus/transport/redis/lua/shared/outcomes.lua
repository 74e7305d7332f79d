-- outcomes: keep the outcomes of a dispatch's commands, as long and as many as the dispatch's record says,
-- and the outcomes of commands that have a history. Called behind the first write, so nothing here fails. A
-- dispatch that was removed keeps none.
--
-- Of a history the record is the hash `history:ids` (command id -> entry), the stream is `history`, and the
-- outcome begins with h<age in ms>:<number>:<bytes of the command id>:<command id>. An entry has these as the
-- fields a, n and i, and the rest as r. It is over after its age, or once `number` newer ones follow it. Who
-- appends deletes up to two that are over, from the old end, and the one that this command had before: it was
-- dead-lettered then, and an operator replayed it. Both keys end by themselves when nothing in them can be
-- kept any more.

local limits_of, kept_in = {}, {}

local function keep_outcome(record, stream, outcome)
  local age, most, size, at = string.match(outcome, '^h(%d+):(%d+):(%d+):()')
  if age then
    local id = string.sub(outcome, at, at + size - 1)
    local added = redis.pcall('XADD', stream, '*', 'i', id, 'a', age, 'n', most, 'r',
      string.sub(outcome, at + size))
    if type(added) ~= 'string' then return end  -- a key of another type
    local before = redis.pcall('HGET', record, id)
    if type(before) == 'string' then redis.pcall('XDEL', stream, before) end
    redis.pcall('HSET', record, id, added)
    for _ = 1, 2 do
      local oldest = redis.call('XRANGE', stream, '-', '+', 'COUNT', 1)[1]
      local fields = oldest[2]
      local ends = tonumber(string.match(oldest[1], '^%d+')) + (tonumber(fields[4] or '') or 0)
      local is_within = redis.call('XLEN', stream) <= (tonumber(fields[6] or '') or 0)
      if is_within and ends > tonumber(string.match(added, '^%d+')) then break end
      redis.call('XDEL', stream, oldest[1])
      redis.pcall('HDEL', record, fields[2])
    end
    for _, key in ipairs({stream, record}) do
      if redis.call('PTTL', key) < tonumber(age) then redis.call('PEXPIRE', key, age) end
    end
    return
  end
  local limits = limits_of[record]
  if limits == nil then
    limits = redis.pcall('HMGET', record, 'keep_ms', 'keep_max')
    limits_of[record] = limits
  end
  if not limits[1] or limits[1] == '0' then return end
  local added = redis.pcall('XADD', stream, 'MAXLEN', '~', limits[2], '*', 'r', outcome)
  if type(added) == 'string' then kept_in[stream] = tonumber(limits[1]) end
end

-- Set the expiry of the streams that got an outcome. With `now` (ms), also drop outcomes that are too old.
local function expire_outcomes(now)
  for stream, ms in pairs(kept_in) do
    if now then redis.pcall('XTRIM', stream, 'MINID', '~', string.format('%.0f', now - ms)) end
    redis.pcall('PEXPIRE', stream, ms)
  end
end

