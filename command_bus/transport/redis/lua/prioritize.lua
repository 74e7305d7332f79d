-- prioritize: give what waits in a mailbox now another class, or delayed commands of it.
--
-- uses: memory_limit, record, newer, line_flow, entry_text, delayed
-- uses: open_line(line_flow, line_runs, line_turns, line_served, line)
--
-- KEYS[1]   ready     stream of activations
-- KEYS[2]   active    hash: mailbox name -> record (see shared/record.lua)
-- KEYS[3]   delayed   hash: command id -> mailbox name, newline, entry (see shared/entry_text.lua)
-- KEYS[4]   mailbox
-- KEYS[5]   flows     hash: what classes and shares have used (see shared/line.lua); this and the next two
--                     may not exist
-- KEYS[6]   turns     sorted set of flows, by their virtual time
-- KEYS[7]   line      sorted set of the places of entities that wait
-- ARGV[1]   group     of consumers
-- ARGV[2]   name      of the mailbox
-- ARGV[3]   class     its digit
-- ARGV[4…]  ids       of delayed commands, which alone are changed if there are any
--
-- returns how many delayed commands were changed, or whether something is in the mailbox: 1 or 0; 'newer' if
--         it is in a state that only a later release knows: nothing was changed
--
-- Each command keeps its tenant, and an entity its place among those that wait as long. What comes later
-- counts by its own class. An activation stays where it is, also one that no worker has.

local ready, active, delayed, flows, class = KEYS[1], KEYS[2], KEYS[3], KEYS[5], ARGV[3]
local group, name, box = ARGV[1], ARGV[2], KEYS[4]

pass_memory_limit(ready, group)
local record = redis.call('HGET', active, name)
if is_newer(record) then return 'newer' end

-- Return the text of a delayed command with its new class.
local function changed_text(text)
  local fields, others, flow = fields_in(text), {'\193'}, '1'
  for i = 1, #fields, 2 do
    if fields[i] == FIELD.FLOW then
      flow = stored_flow(fields[i + 1])
    else
      others[#others + 1] = fields[i] .. ':' .. #fields[i + 1] .. ':' .. fields[i + 1]
    end
  end
  flow = class .. string.sub(flow, 2)
  return table.concat(others) .. 'f:' .. #flow .. ':' .. flow
end

local function change_delayed(id)
  local value = redis.call('HGET', delayed, id) or ''
  local cut = string.find(value, '\n', 1, true)
  if not cut or string.sub(value, 1, cut - 1) ~= name then return 0 end
  redis.call('HSET', delayed, id, string.sub(value, 1, cut) .. changed_text(string.sub(value, cut + 1)))
  return 1
end

-- Return the record with another class.
local function changed(queue_up)
  local state, _, _, _, attempt, first, _, parts = parse_record(record)
  local others, runs = string.gsub(parts, '|f=[^|]*', ''), string.match(parts, '|f=([^|]*)')
  runs = runs or '1*' .. math.max(redis.call('XLEN', box), 1) .. '@'
  runs = string.gsub(',' .. runs, ',[012]', ',' .. class)
  local after = others .. '|f=' .. string.sub(runs, 2)
  local head, flow_of = queue_up.head_of(box), flow_by_record()
  local noted = string.sub(record, 1, #record - #parts) .. after
  if state == STATE.LIMITED and flow_of(after, head) ~= flow_of(parts, head) then
    noted = queue_up.join(name, attempt, first, after, head)  -- it asks its limit again, as its new like
  end
  noted = queue_up.left(noted, name, {}, box)
  if string.find(runs, ',[02]') or string.find(runs, ',1[^*]') then return noted end
  return string.gsub(noted, '|f=[^|]*', '')  -- what is of the normal class, without tenants, does without
end

local count = 0
for i = 4, #ARGV do count = count + change_delayed(ARGV[i]) end
if #ARGV == 3 and record then count = 1 end
if count == 0 then return 0 end
if redis.call('EXISTS', flows) == 0 then
  if class == '1' then return count end
  redis.call('HSET', flows, 'c0', '0')  -- the line is in use
end
if #ARGV == 3 then
  local queue_up = open_line(ready, active, flows, KEYS[6], KEYS[7])
  if not queue_up then return 0 end
  local text = changed(queue_up)
  redis.call('HSET', active, name, text)
  queue_up.finish()
end
return count
