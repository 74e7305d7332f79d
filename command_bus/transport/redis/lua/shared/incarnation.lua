-- incarnation: what writes without a lease names the incarnation of its shard that it has read. A worker that
-- was stopped while the namespace was deleted writes nothing into the one that follows.

-- Return whether a shard is of another incarnation, or is being deleted.
local function is_of_another_time(stats, incarnation)
  return redis.call('HGET', stats, 'incarnation') ~= incarnation
end

