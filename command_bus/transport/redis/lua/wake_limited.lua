-- wake_limited: make mailboxes ready that waited for a limit of the first shard.
--
-- uses: memory_limit, record, holds, incarnation
--
-- KEYS[1]   ready     stream of activations
-- KEYS[2]   active    hash: mailbox name -> record (see shared/record.lua)
-- KEYS[3]   paused    hash: scope -> mode|since in ms|why (see shared/holds.lua)
-- KEYS[4]   stats     hash of counters, with the shard's incarnation
-- ARGV[1]   group     of consumers
-- ARGV[2]   shard     its incarnation, as it was read
-- ARGV[3…]  names     of the mailboxes
--
-- returns for each 'woken', 'again' if it does not wait yet (its worker was refused and has yet to say so),
-- or 'gone' if it waits no more or
--         is paused; only 'gone' if the shard is of another incarnation
--
-- They do not pass the line (see shared/line.lua): each has passed it before its limit refused it, and a
-- grant holds places that others want.

local ready, active, paused = KEYS[1], KEYS[2], KEYS[3]
if is_of_another_time(KEYS[4], ARGV[2]) then return 'gone' end
pass_memory_limit(ready, ARGV[1])

local function wake(name)
  local record = redis.call('HGET', active, name)
  local state, _, _, _, attempt, first, _, parts = parse_record(record or '')
  if state and string.find(state, '^[rhHoOq]$') then return 'again' end
  if state ~= STATE.LIMITED then return 'gone' end
  if holds_of(paused, name) then
    redis.call('HSET', active, name, pack_record(STATE.STOPPED, '', attempt, first, parts))
    return 'gone'
  end
  redis.call('HSET', active, name, queue(ready, name, attempt, first, parts))
  return 'woken'
end

local answers = {}
for i = 3, #ARGV do answers[i - 2] = wake(ARGV[i]) end
return answers
