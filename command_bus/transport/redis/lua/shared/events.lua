-- events: write what happens to commands of watched entity types to a stream. A script that changes something
-- writes its event in the same step, so the event is stored together with the change or not at all.

-- Return the part of an envelope that names the command: id, wire name, entity type and entity id. These are
-- the MessagePack texts behind the envelope's head and version. Empty if it is not an envelope of ours.
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
      return ''
    end
  end
  return string.sub(envelope, 3, at - 1)
end

-- Return two functions. `publish` writes an event: its kind, the mailbox or scope, the command's envelope,
-- then attempt, fence, worker and a detail. `is_watched` returns whether events of a mailbox are written.
-- `watched` is a hash: entity type (~ for none, * for all) -> number of events to keep. All types share one
-- stream, so the highest number counts. An entry has few fields: each costs 0.2 us.
local function publisher(watched, events)
  local types, most = {}, 0
  local pairs_of = redis.pcall('HGETALL', watched)
  for i = 1, #pairs_of, 2 do
    types[pairs_of[i]] = true
    most = math.max(most, tonumber(pairs_of[i + 1]) or 0)
  end
  local function is_watched(name)
    return types[string.match(name, '^[^:/]*')] or types['*'] or (name == '*' and most > 0)
  end
  local function publish(kind, name, envelope, attempt, fence, worker, detail)
    if not is_watched(name) then return end
    local facts = kind .. '|' .. (attempt or '') .. '|' .. (fence or '') .. '|' .. (worker or '') .. '|'
      .. (detail or '')
    redis.pcall('XADD', events, 'MAXLEN', '~', most, '*', 'v', facts, 'm', name, 'c', names_in(envelope))
  end
  return publish, is_watched
end

