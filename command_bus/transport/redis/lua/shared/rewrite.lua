-- rewrite: give the first command of a mailbox another envelope. Uses record, lone.
--
-- A stream's entries cannot be changed, and none can be added before others. So if the envelope stands in the
-- stream, the stream is written again, with the ids that it had; a large one is not, because no other client
-- is served meanwhile.

local MOST_REWRITTEN = 8 * 1024 * 1024  -- bytes

-- Return the fields of an entry with another envelope, or another value of the field that is named.
local function with_envelope(fields, envelope, name)
  local changed = {}
  for i = 1, #fields do
    changed[i] = i % 2 == 0 and fields[i - 1] == (name or FIELD.ENVELOPE) and envelope or fields[i]
  end
  return changed
end

-- Return the fields of an entry with a further one, unless it has that.
local function with_field(fields, name, value)
  for i = 1, #fields, 2 do
    if fields[i] == name then return fields end
  end
  fields[#fields + 1], fields[#fields + 2] = name, value
  return fields
end

-- Return the entries of a mailbox, oldest first, a lone one alone; nil if there is too much to write.
local function entries_to_rewrite(box)
  local entries, bytes, after = {}, 0, '-'
  repeat
    local page = redis.call('XRANGE', box, after, '+', 'COUNT', 100)
    for _, entry in ipairs(page) do
      entries[#entries + 1] = entry
      for i = 2, #entry[2], 2 do bytes = bytes + #entry[2][i] + 100 end
      after = '(' .. entry[1]
    end
    if #entries > 0 and entries[1][2][1] == FIELD.IN_LONE then return entries end
    if bytes > MOST_REWRITTEN then return nil end
  until #page < 100
  return entries
end

local function write_again(box, entries)
  redis.call('DEL', box)
  for _, entry in ipairs(entries) do redis.call('XADD', box, entry[1], unpack(entry[2])) end
  return true
end

-- Return false if there is too much to write, or no first command: then nothing was changed.
local function rewrite_head(box, lone, name, envelope, field)
  local entries = entries_to_rewrite(box)
  if not entries or #entries == 0 then return false end
  if entries[1][2][1] == FIELD.IN_LONE then return redis.call('HSET', lone, name, envelope) and true end
  entries[1][2] = with_envelope(entries[1][2], envelope, field)
  return write_again(box, entries)
end

-- Put an entry before all others, with an id that stood there; return false if that cannot be.
local function put_first(box, id, fields)
  local entries = entries_to_rewrite(box)
  if not entries or (entries[1] and not is_behind(entries[1][1], id)) then return false end
  table.insert(entries, 1, {id, fields})
  return write_again(box, entries)
end
