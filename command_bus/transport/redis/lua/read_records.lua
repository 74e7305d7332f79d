-- read_records: return side records (see shared/arrive.lua).
--
-- KEYS[1…] side records
-- ARGV[1]  fields    of one that is returned, at most
-- ARGV[2]  bytes     after which no further one is returned
--
-- returns for each its fields and their values; false if it has to be read a page at a time

local fields, bytes, found, returned = tonumber(ARGV[1]), tonumber(ARGV[2]), {}, 0
for i = 1, #KEYS do
  local size = redis.pcall('HLEN', KEYS[i])  -- a key of another type fails alone
  if size == 0 then
    found[i] = {}
  elseif type(size) ~= 'number' or size > fields or returned > bytes then
    found[i] = false
  else
    found[i] = redis.call('HGETALL', KEYS[i])
    for at = 2, #found[i], 2 do returned = returned + #found[i][at] end
  end
end
return found
