-- delayed: the hash `later`: mailbox name -> number of delayed commands.

-- Count one delayed command less. Called behind the first write, so it does not fail.
local function count_down_delayed(delayed_counts, name)
  local left = redis.pcall('HINCRBY', delayed_counts, name, -1)
  if type(left) ~= 'number' or left <= 0 then redis.call('HDEL', delayed_counts, name) end
end

