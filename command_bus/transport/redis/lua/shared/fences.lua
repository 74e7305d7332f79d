-- fences: numbers that grow from start to start, in every shard. A fence is about the server's time in
-- microseconds.

-- What stands there and is no fence is passed over: the time alone is high enough.

-- Return two functions: one that returns the next fence as text, and one that keeps the last, to be called if
-- there is one.
local function fences_of(key, time)
  local fence, kept = time[1] * 1000000 + time[2] - 1, tonumber(redis.call('GET', key) or '0')
  if kept and kept > fence and kept < 9007199254740992 then fence = kept end
  -- Printing a whole fence takes longer than all else that a start does, so only its last six digits are
  -- printed each time.
  local high, low = string.format('%.0f', math.floor(fence / 1000000)), fence % 1000000
  local function next_fence()
    fence, low = fence + 1, low + 1
    if low == 1000000 then high, low = string.format('%.0f', fence / 1000000), 0 end
    return high .. string.format('%06d', low)
  end
  local function keep_fence()
    redis.call('SET', key, string.format('%.0f', fence))
  end
  return next_fence, keep_fence
end

