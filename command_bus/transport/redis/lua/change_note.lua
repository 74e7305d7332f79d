-- change_note: write a record of a book, if it is what is expected.
--
-- KEYS[1]   book     hash: name -> record, opaque
-- ARGV[1]   name     of the record
-- ARGV[2]   before   the record that is expected; empty: none
-- ARGV[3]   after    the new one; empty: none
--
-- returns 1 if it is now as asked, 0 if it is another record, and was left alone
--
-- Asked again, it answers the same.

local book, name, before, after = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local found = redis.call('HGET', book, name) or ''
if found == after then return 1 end
if found ~= before then return 0 end
if after == '' then
  redis.call('HDEL', book, name)
else
  redis.call('HSET', book, name, after)
end
return 1
