-- telling: what happens to commands of watched entity types, as entries of a stream. Stands before the scripts that make it happen, so
-- that an event is written with what it tells of, or not at all.

-- The part of an envelope that names the command: id, wire name, entity type and entity id, the MessagePack texts after its head and version.
local function names_in(envelope)
  local at = 3
  for _ = 1, 4 do
    local kind, high, low = string.byte(envelope, at, at + 2)
    if kind == 0xda and low then
      at = at + 3 + 256 * high + low
    elseif kind == 0xd9 and high then
      at = at + 2 + high
    elseif kind and kind >= 0xa0 and kind <= 0xbf then
      at = at + 1 + kind - 0xa0
    elseif kind == 0xc0 then
      at = at + 1
    else
      return ''  -- no envelope of ours
    end
  end
  return string.sub(envelope, 3, at - 1)
end

-- Gives two functions: one that tells of an event (of which kind, in which mailbox or scope, of which command, by its envelope; attempt,
-- fence, worker and more about it), and one that says whether events of a mailbox are told of. `watched` is a hash: entity type (~ stands
-- for none, * for all) -> how many events are to be kept; they share a stream, so the most that any type asks for counts. An entry has few
-- fields: each costs 0.2 us.
local function teller(watched, events)
  local types, most = {}, 0
  local pairs_of = redis.pcall('HGETALL', watched)
  for i = 1, #pairs_of, 2 do
    types[pairs_of[i]] = true
    most = math.max(most, tonumber(pairs_of[i + 1]) or 0)
  end
  local function is_told(name)
    return types[string.match(name, '^[^:/]*')] or types['*'] or (name == '*' and most > 0)
  end
  local function tell(kind, name, envelope, attempt, fence, worker, detail)
    if not is_told(name) then return end
    local facts = kind .. '|' .. (attempt or '') .. '|' .. (fence or '') .. '|' .. (worker or '') .. '|' .. (detail or '')
    redis.pcall('XADD', events, 'MAXLEN', '~', most, '*', 'v', facts, 'm', name, 'c', names_in(envelope))
  end
  return tell, is_told
end

