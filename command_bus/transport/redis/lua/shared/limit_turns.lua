-- limit_turns: whose turn it is in the queue of a limit, where classes or shares are in use (see
-- shared/limit_queues.lua).
--
-- The order is that of the line (see shared/line.lua), with a virtual time for each class of each queue.

local CLASS_COSTS = {1, 4, 16}

-- Return what a queue's classes have used, their virtual times, and when they were written; nil if none of
-- its mailboxes named a flow.
local function turns_in(text)
  local numbers = {}
  for number in string.gmatch(text or '', '[^|]+') do numbers[#numbers + 1] = tonumber(number) end
  if #numbers < 7 then return nil end
  return {used = {numbers[1], numbers[2], numbers[3]}, virtual = {numbers[4], numbers[5], numbers[6]}}
end

local function text_of_turns(turns, now)
  local used, virtual = turns.used, turns.virtual
  local least = math.min(used[1], used[2], used[3])
  return string.format('%.0f|%.0f|%.0f|%.0f|%.0f|%.0f|%.0f', used[1] - least, used[2] - least,
    used[3] - least, virtual[1], virtual[2], virtual[3], now)
end

-- Return the first members of a scope's queue: those that come before all classes, and lists of the classes
-- high, normal and low; of each at most so many.
local function first_in_queue(places_key, scope, most)
  local from, first, classes = 'q\n' .. scope .. '\n', {}, {{}, {}, {}}
  local page = redis.call('ZRANGEBYLEX', places_key, '[' .. from, '(q\n' .. scope .. '\11', 'LIMIT', 0, most)
  local rank = 0
  for _, member in ipairs(page) do
    rank = string.byte(member, #from + 1) - 48
    local list = rank < 2 and first or classes[rank - 1] or classes[3]
    list[#list + 1] = member
  end
  if #page == most then  -- others stand behind it: lower classes are not to starve
    for lower = math.max(rank + 1, 2), 4 do
      classes[lower - 1] = redis.call('ZRANGEBYLEX', places_key, '[' .. from .. lower,
        '(' .. from .. lower + 1, 'LIMIT', 0, most)
    end
  end
  return first, classes
end

-- Return the class that comes next: of those with members left, the one that has used least for its weight;
-- nil if none is left.
local function next_class(classes, at, turns)
  local chosen = nil
  for class = 1, 3 do
    if classes[class][at[class]] and (not chosen or (turns and turns.used[class] < turns.used[chosen])) then
      chosen = class
    end
  end
  return chosen
end

-- Note that a class was served up to a member's number. Those of which none waits save nothing up.
local function serve(turns, class, classes, at, number)
  turns.used[class] = turns.used[class] + CLASS_COSTS[class]
  turns.virtual[class] = math.max(turns.virtual[class], number)
  for other = 1, 3 do
    if not classes[other][at[other]] then
      turns.used[other] = math.max(turns.used[other], turns.used[class])
    end
  end
end
