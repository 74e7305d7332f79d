-- loading: what a chunk of a dispatch is checked against.

-- Return why a version takes nothing: 'done' if it is committed, 'gone' if it is not open; nil if it is open.
local function closed_version(record, version)
  local state = redis.call('HMGET', record, 'open', 'done')
  if state[2] and tonumber(state[2]) >= tonumber(version) then return 'done' end
  if state[1] ~= version then return 'gone' end
end

-- Return the last sequence number of each entity, by the entity.
local function last_numbers(last, entities)
  local numbers = {}
  local found = redis.call('HMGET', last, unpack(entities))
  for i, entity in ipairs(entities) do numbers[entity] = tonumber(found[i] or '-inf') end
  return numbers
end

-- Return which of the entities new to a task it begins, as pairs to be noted, and how many others another
-- task of its run has begun; with `strict` that is refused, and this returns 'split|', the partition, '|' and
-- the entity. The entities are the arguments from a number on.
--
-- An entity's commands keep their order only if one task writes them. If another run has begun it (a job that
-- is run again), this run takes over.
local function begun_entities(homes, home, strict, from)
  local fresh, shared = {}, 0
  if home == '' or #ARGV < from then return fresh, shared end
  local run = string.match(home, '^[^|]*|')
  for i, other in ipairs(redis.call('HMGET', homes, unpack(ARGV, from))) do
    local entity = ARGV[from + i - 1]
    if other and other ~= home and string.sub(other, 1, #run) == run then
      if strict then return 'split|' .. string.sub(other, #run + 1) .. '|' .. entity end
      shared = shared + 1
    else
      fresh[#fresh + 1], fresh[#fresh + 2] = entity, home
    end
  end
  return fresh, shared
end

-- Note the entities that a task has begun, and the last sequence number of entities, each for ms.
local function note_entities(homes, fresh, last, reached, ttl)
  if #fresh > 0 then
    redis.call('HSET', homes, unpack(fresh))
    redis.call('PEXPIRE', homes, ttl)
  end
  if #reached > 0 then
    redis.call('HSET', last, unpack(reached))
    redis.call('PEXPIRE', last, ttl)
  end
end

