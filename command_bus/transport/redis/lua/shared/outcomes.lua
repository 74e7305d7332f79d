-- outcomes: keep the outcomes of a dispatch's commands, as long and as many as the dispatch's record says. Called behind the first
-- write, so nothing here fails. A dispatch that was removed keeps none.

local limits_of, kept_in = {}, {}

local function keep_outcome(record, stream, outcome)
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

