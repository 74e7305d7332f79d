-- agenda: times in the sorted set `due`: member -> ms. What becomes due is dealt with by any worker.

-- Set the time of a member. If it is the earliest, a tick in the ready stream tells a worker. Called behind
-- the first write, so it does not fail.
local function set_due(due, ready, member, at)
  local head = redis.pcall('ZRANGE', due, 0, 0, 'WITHSCORES')
  redis.pcall('ZADD', due, at, member)
  if not head[2] or tonumber(at) < tonumber(head[2]) then redis.pcall('XADD', ready, '*', 'tick', '1') end
end

