-- keep_digest: who settles or replays a command knows its envelope, but not which fields its sender left at
-- their defaults (see shared/known.lua).

-- Return what is to be written as a mark, with the digest of the mark that is there if its own has none of
-- the fields.
local function keep_digest(mark, value)
  if string.byte(value, 2) == 0 or string.sub(value, 6, 9) ~= '\0\0\0\0' then return value end
  local before = redis.pcall('GET', mark)
  if type(before) ~= 'string' or #before < 9 or string.byte(before, 2) == 0 then return value end
  return string.sub(value, 1, 1) .. string.sub(before, 2, 9) .. string.sub(value, 10)
end

