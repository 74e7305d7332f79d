-- outcome_offset: find the id of the entry that ends a range of so many entries, without sending the entries.
--
-- KEYS[1]   stream
-- ARGV[1]   after     where to start, as XRANGE takes it
-- ARGV[2]   until     id of the last entry that may be counted
-- ARGV[3]   count     of entries
--
-- returns how many entries there were, at most count, and the id of the last; an empty id if there were none

local found = redis.call('XRANGE', KEYS[1], ARGV[1], ARGV[2], 'COUNT', ARGV[3])
return {#found, #found > 0 and found[#found][1] or ''}
