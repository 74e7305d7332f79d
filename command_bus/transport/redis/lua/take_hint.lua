-- take_hint: take one from a hint, down to zero.
--
-- KEYS[1]   hint   string: new commands for which nothing was woken yet; it expires
--
-- returns 1 if one was taken, 0 if none was left, -1 if there is no such hint

local left = redis.call('GET', KEYS[1])
if not left then return -1 end
if (tonumber(left) or 0) < 1 then return 0 end
redis.call('DECR', KEYS[1])
return 1
