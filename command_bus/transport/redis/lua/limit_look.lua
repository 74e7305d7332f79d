-- limit_look: return what limits have spent, and where mailboxes stand in their queues. It changes nothing.
--
-- uses: record, line_flow, limits, limit_passes, limit_turns, limit_queues, limit_wakes
--
-- KEYS[1]   rules     hash: what limits apply (see shared/limits.lua)
-- KEYS[2]   limits    hash: buckets, and who waits for a limit or has passed one
-- KEYS[3]   places    sorted set: the queues and places of limits
-- ARGV[1]   verb      scopes, stand, all
-- ARGV[2…]  scopes: rules, whose scopes are wanted that are in use; stand: mailboxes
--
-- returns scopes: for each scope its name, free tokens in thousandths (-1 if it has no rate), places taken,
-- mailboxes that wait, us until the
--         first of them may start (-1 if only a place that is given up tells), and us until a hold of a
--         handler is over (0 if there is none); stand: for each mailbox that waits its name, scope, ms since
--         when, how many stand before it, and these us; all: how many mailboxes wait

local places, verb = KEYS[3], ARGV[1]
local MOST = 1000  -- scopes of a rule

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local limits = limiter(KEYS[1], KEYS[2], places, now, true)
add_queues(limits, KEYS[2], places, now)
local answers = {}

local function until_start(scope)
  local at = next_start(limits, scope, 1, now)
  return at and math.max(math.ceil(at - now), 0) or -1
end

local function add_scope(scope)
  local rule = limits.rule_of(scope)
  local free = rule and rule.tick and math.floor(limits.tokens_of(rule, limits.bucket_of(scope)) * 1000) or -1
  local facts = {scope, free, limits.taken(scope), limits.length_of('q\n', scope), until_start(scope),
    math.max(limits.bucket_of(scope).held - now, 0)}
  for _, value in ipairs(facts) do
    answers[#answers + 1] = value
  end
end

-- Call a function with each scope of a rule that has members of a kind, at most so many.
local function each_scope(kind, rule, found)
  local from, count = '[' .. kind .. rule, 0
  while count < MOST do
    local member = redis.call('ZRANGEBYLEX', places, from, '+', 'LIMIT', 0, 1)[1]
    local scope = member and string.match(member, '^' .. kind .. '([^\n]*)\n')
    if not scope or (scope ~= rule and string.sub(scope, 1, #rule + 1) ~= rule .. ':') then return end
    found[scope] = true
    from, count = '[' .. kind .. scope .. '\11', count + 1
  end
end

if verb == 'all' then return redis.call('ZLEXCOUNT', places, '[q\n', '(q\11') end
for arg = 2, #ARGV do
  if verb == 'stand' then
    local key, since, _, scope = limits.waiting(ARGV[arg])
    if scope then
      local member = 'q\n' .. scope .. '\n' .. key .. '\n' .. ARGV[arg]
      local before = redis.call('ZLEXCOUNT', places, '[q\n' .. scope .. '\n', '(' .. member)
      local ms = string.format('%.0f', math.floor(since / 1000))
      for _, value in ipairs({ARGV[arg], scope, ms, before, until_start(scope)}) do
        answers[#answers + 1] = value
      end
    end
  else
    local rule, found = ARGV[arg], {}
    if rule == 'bus' or string.sub(rule, 1, 5) == 'type:' then
      found[rule] = true
    else
      each_scope('q\n', rule, found)
      each_scope('s\n', rule, found)
      local fields = redis.call('HSCAN', KEYS[2], 0, 'MATCH', 'b\n' .. rule .. '*', 'COUNT', MOST)[2]
      for i = 1, #fields, 2 do
        local scope = string.sub(fields[i], 3)
        if scope == rule or string.sub(scope, 1, #rule + 1) == rule .. ':' then found[scope] = true end
      end
    end
    for scope in pairs(found) do add_scope(scope) end
  end
end
return answers
