-- delayed: the hash `later`: mailbox name -> number of delayed commands.

-- Count one delayed command less. Called behind the first write, so it does not fail.
local function count_down_delayed(later, name)
  local left = redis.pcall('HINCRBY', later, name, -1)
  if type(left) ~= 'number' or left <= 0 then redis.call('HDEL', later, name) end
end

