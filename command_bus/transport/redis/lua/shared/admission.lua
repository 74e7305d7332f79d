-- admission: what accepting commands changes in `active`. Uses record.

-- Return two functions and the list that both fill: `active`, then name and record of each mailbox that became active, for one HSET.
-- `activate` makes a mailbox active that was idle. `spoiled` returns whether an error concerns one mailbox, not the server; a mailbox
-- whose ids are used up is activated, because the worker that empties it deletes it with its ids.
--
-- Mailboxes go by their number in `names`. `held` has those that start nothing. `records` are those of `active`; nil: read when needed.
local function activator(ready, active, names, held, records)
  local changed = {active}
  local function activate(box)
    if not records then records = redis.call('HMGET', active, unpack(names)) end
    if records[box] then return end
    records[box] = true
    local name = names[box]
    changed[#changed + 1] = name
    changed[#changed + 1] = held[box] and pack_record('s', '', '0', '0') or queue(ready, name, '0', '0')
  end
  local function spoiled(box, fault)
    if string.find(tostring(fault.err), ' ID', 1, true) then
      activate(box)
      return true
    end
    return string.find(tostring(fault.err), 'WRONGTYPE', 1, true)
  end
  return activate, spoiled, changed
end

