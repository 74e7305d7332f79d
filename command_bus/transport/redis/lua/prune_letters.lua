-- prune_letters: delete dead letters that are too old, and the oldest of those that are too many. A letter
-- that parks an entity stays.
--
-- uses: memory_limit, entry_text, events
--
-- KEYS[1]   ready     stream of activations
-- KEYS[2]   dead      stream of dead letters
-- KEYS[3]   parked    hash: mailbox name -> id of its dead letter
-- KEYS[4]   stats     hash of counters
-- KEYS[5]   watched   hash: entity type -> number of events to keep (see shared/events.lua)
-- KEYS[6]   events    stream of what happened to commands of watched types
-- KEYS[7…]  for each letter whose side record is known: that record (see shared/arrive.lua), and the mark of
--           its command
-- ARGV[1]   group     of consumers
-- ARGV[2]   ttl       ms for which a letter is kept; empty: for ever
-- ARGV[3]   most      letters that are kept, those that park an entity included; empty: any number
-- ARGV[4]   after     id of the letter behind which to look on; empty: from the first
-- ARGV[5]   page      letters to look at, at most
-- ARGV[6]   bytes     of letters to look at, and one letter more
-- ARGV[7]   kept      ms for which the mark of a durable command is kept once its letter is gone
-- ARGV[8…]  ids of the letters whose side records are known
--
-- returns {how many were deleted, id of the letter behind which to look on, empty if there is nothing more to
-- delete, and of each letter that
--         kept a side record which is not known: its id, and the names in its envelope}
--
-- A letter that kept a side record goes in one step with that. So it is deleted only if its record is known:
-- the worker asks again for those. A letter is as old as its id, by the server's clock. It is looked at again
-- here, so that several workers may prune at once.

local dead, parked, ttl, most = KEYS[2], KEYS[3], tonumber(ARGV[2]), tonumber(ARGV[3])
local left = redis.call('XLEN', dead)
local time = redis.call('TIME')
local oldest = ttl and time[1] * 1000 + math.floor(time[2] / 1000) - ttl
local publish = nil

local sides = {}  -- letter -> its side record, and the mark
for i = 8, #ARGV do sides[ARGV[i]] = {KEYS[2 * i - 9], KEYS[2 * i - 8]} end

local after, deleted, seen, bytes, unknown = ARGV[4], 0, 0, 0, {}
while seen < tonumber(ARGV[5]) and bytes <= tonumber(ARGV[6]) do
  local entry = redis.call('XRANGE', dead, after == '' and '-' or '(' .. after, '+', 'COUNT', 1)[1]
  local id = entry and entry[1]
  local is_old = id and oldest and tonumber(string.match(id, '^%d+')) < oldest
  if not is_old and not (id and most and left > most) then
    after = ''
    break
  end
  local fields = {}
  for i = 1, #entry[2], 2 do
    fields[entry[2][i]] = entry[2][i + 1]
    bytes = bytes + #entry[2][i + 1]
  end
  after, seen = id, seen + 1
  local is_parked = redis.call('HGET', parked, fields['m'] or '') == id
  if not is_parked and fields['x'] and not sides[id] then
    left = left - 1
    unknown[#unknown + 1], unknown[#unknown + 2] = id, names_in(envelope_of_text(fields['e'] or ''))
  elseif not is_parked then
    if deleted == 0 then
      pass_memory_limit(KEYS[1], ARGV[1])
      publish = publisher(KEYS[5], KEYS[6])
    end
    redis.call('XDEL', dead, id)
    deleted, left = deleted + 1, left - 1
    if sides[id] then
      redis.call('DEL', sides[id][1])
      redis.call('PEXPIRE', sides[id][2], ARGV[7])
    end
    publish('discarded', fields['m'] or '', envelope_of_text(fields['e'] or ''), '', '', '', id)
  end
end
if deleted > 0 then redis.pcall('HINCRBY', KEYS[4], 'pruned', deleted) end
return {deleted, after, unknown}
