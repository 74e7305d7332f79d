-- change_state: write or delete the state of an entity. It is left alone while a command of the entity runs
-- or is suspended: the worker has read it, and would overwrite this.
--
-- KEYS[1]   active   hash: mailbox name -> record (see shared/record.lua)
-- KEYS[2]   states   hash: mailbox name -> state of its entity
-- ARGV[1]   name     of the mailbox
-- ARGV[2]   state    empty: it is deleted
-- ARGV[3]   checks   '1' if the state must be the expected one
-- ARGV[4]   expected what it must be; empty: there must be none
--
-- returns 'done', 'none' if there is nothing to delete, 'busy' while a command runs or is suspended, 'other'
-- if it is not the expected one, 'newer' if the record is of a later release

local active, states, name, state, checks, expected = KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local record = redis.call('HGET', active, name)
local is_free = {
  [STATE.READY] = true, [STATE.RETRYING] = true, [STATE.LIMITED] = true, [STATE.IN_LINE] = true,
  [STATE.STOPPED] = true, [STATE.BLOCKED] = true, [STATE.LONE] = true,
}
local is_busy = {
  [STATE.HELD] = true, [STATE.HELD_AND_CHANGED] = true, [STATE.SUSPENDED] = true, [STATE.LONE_HELD] = true,
  [STATE.LONE_SUSPENDED] = true,
}
local first = record and string.sub(record, 1, 1)
if first and is_busy[first] then return 'busy' end
if first and not is_free[first] then return 'newer' end
local present = redis.call('HGET', states, name) or ''
if checks == '1' and present ~= expected then return 'other' end
if state ~= '' then
  redis.call('HSET', states, name, state)
elseif present == '' then
  return 'none'
else
  redis.call('HDEL', states, name)
end
return 'done'
