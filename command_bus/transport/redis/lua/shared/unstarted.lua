-- unstarted: the outcome and the names of a command that was never started, packed as MessagePack (see
-- `serialization/outcome.py`).

local function packed_text(text)
  local size, char = #text, string.char
  if size < 32 then return char(0xa0 + size) .. text end
  if size < 256 then return '\217' .. char(size) .. text end
  return '\218' .. char(math.floor(size / 256), size % 256) .. text
end

local function packed_bytes(bytes)
  local size = #bytes
  if size < 256 then return '\196' .. string.char(size) .. bytes end
  return '\197' .. string.char(math.floor(size / 256), size % 256) .. bytes
end

-- Return a positive integer in 64 bits.
local function packed_number(number)
  local bytes = {}
  for place = 8, 1, -1 do
    bytes[place] = string.char(number % 256)
    number = math.floor(number / 256)
  end
  return '\207' .. table.concat(bytes)
end

-- Return the packed type and id of a command's entity, from its names as `names_in` gives them.
local function entity_of_names(names, id, name)
  return string.sub(names, #packed_text(id) + #packed_text(name) + 1)
end

-- Return the head of the envelope of a command: an event quotes no more.
local function packed_head(id, name, entity)
  return '\149\1' .. packed_text(id) .. packed_text(name) .. entity
end

-- Return the outcome `folded` of a command that never was in a mailbox.
local function folded_outcome(id, name, entity, other)
  local reply = '\148\1' .. packed_text(id) .. '\0' .. packed_bytes('\192')
  return '\157\1' .. packed_text('folded') .. packed_text(name) .. entity .. '\0\160\0\0\0\160'
    .. packed_bytes(reply) .. packed_text(other)
end

-- Return the outcome `superseded` of a command at a place: a message id, which begins with the ms of
-- acceptance, or d.
local function superseded_outcome(id, name, entity, place, other)
  local accepted = tonumber(string.match(place, '^(%d+)%-')) or 0
  local message = packed_text(other .. ' took its place, of the same unique key')
  local reply = '\149\1' .. packed_text(id) .. '\8' .. message .. packed_text('superseded')
  local before = '\157\1' .. packed_text('superseded') .. packed_text(name) .. entity .. '\0\160'
    .. packed_number(accepted) .. '\0\0'
  return before .. packed_text(place == PLACE.DELAYED and '' or place) .. packed_bytes(reply)
    .. packed_text(other)
end

