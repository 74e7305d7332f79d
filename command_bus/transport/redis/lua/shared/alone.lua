-- alone: whether a command that is accepted can be a lone one (see shared/lone.lua).

local LONE_BYTES = 3072  -- a larger command gains nothing

-- Return whether an activation that was just added may be the id of a lone command, which is its time of
-- acceptance: not if the server's clock has gone back behind the ready stream's last id. Its ids count up
-- within a millisecond, so only a count above 0 raises the question. `now` may be ms of the server's time
-- when the script began.
local function tells_time(activation, now)
  if string.sub(activation, -2) == '-0' then return true end
  local ms = tonumber(string.match(activation, '^%d+'))
  if now and ms <= now then return true end
  local time = redis.call('TIME')
  return ms <= time[1] * 1000 + math.floor(time[2] / 1000)
end
