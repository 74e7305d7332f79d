-- memory_limit: run at the server's memory limit.

-- Let all later writes of this script through. At its memory limit the server refuses a command that needs
-- memory, but only while the script has written nothing. XACK needs no memory, so it is never refused; of the
-- id 0-0, which no entry has, it changes nothing. So a full server still lets work drain, and no script stops
-- half-way.
local function pass_memory_limit(ready, group)
  redis.call('XACK', ready, group, '0-0')
end

