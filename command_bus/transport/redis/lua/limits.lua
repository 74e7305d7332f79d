-- limits: decide at the first shard which mailboxes may start, and wake those that wait.
--
-- uses: memory_limit, record, holds, line_flow, limits, limit_passes, limit_turns, limit_queues, limit_wakes
-- uses: incarnation
--
-- KEYS[1]   ready     stream of activations
-- KEYS[2]   active    hash: mailbox name -> record (see shared/record.lua)
-- KEYS[3]   due       sorted set of what becomes due, by ms
-- KEYS[4]   paused    hash: scope -> mode|since in ms|why (see shared/holds.lua)
-- KEYS[5]   rules     hash: what limits apply (see shared/limits.lua)
-- KEYS[6]   limits    hash: buckets, and who waits for a limit or has passed one
-- KEYS[7]   places    sorted set: the queues and places of limits
-- KEYS[8]   stats     hash of counters, with the shard's incarnation
-- KEYS[9]   flows     hash: weights of tenants, among others (see shared/line.lua); it may not exist
-- ARGV[1]   group     of consumers
-- ARGV[2]   verb      ask, over, wake, again, gone, hold, clean
-- ARGV[3]   shard     its incarnation, as it was read
-- ARGV[4…]  ask: for each mailbox its name, shard, activation, the message that would start, what its worker
--           reads, '1' if it must not keep a place that another one waits for; over: mailbox, activation;
--           wake: scope; again, gone: mailbox; hold: scope, until in ms, 0 to end it; clean: scope
--
-- returns ask: for each '+' if it may start, else the scope in whose queue it now stands; wake: mailbox and
-- shard of each that its own shard
--         has to make ready; else how many were changed. 'gone' if the shard is of another incarnation
--
-- over: a lease has ended: its places are free. again: a granted mailbox does not wait yet, it goes back into
-- the queue. gone: it does not wait any more. clean: forget what is over. A mailbox of this shard that does
-- not wait is passed over: its worker was refused and has yet to say so.

local ready, active, due, paused = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local verb = ARGV[2]
local PAGE = 200  -- mailboxes that are woken at a time
local PAUSE = 5  -- ms until a worker that was refused is asked again whether it has said so

if is_of_another_time(KEYS[8], ARGV[3]) then return 'gone' end
pass_memory_limit(ready, ARGV[1])
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local limits = open_limits(KEYS[5], KEYS[6], KEYS[7], now, true, KEYS[9])

local function ask(mailbox, shard, activation, message, keyed, must_yield)
  local pass = limits.pass_of(mailbox)
  if pass and pass.kind == PASS.START then
    -- A lease that is over: its take is refused.
    if is_behind(pass.activation, activation) then return '+' end
    -- Asked again, as after a lost answer: this message has leave already, or the next one has.
    if pass.activation == activation and pass.message ~= '' and not is_behind(message, pass.message) then
      return '+'
    end
  end
  local refusing, scopes = limits.refusing(mailbox, activation, message, keyed)
  if not refusing and must_yield == '1' and pass and pass.kind == PASS.START then
    for scope in pairs(pass.scopes) do
      if limits.is_queued(scope) then refusing = scope end
    end
  end
  if refusing then
    limits.wait(mailbox, refusing, message, keyed, shard)
    return refusing
  end
  limits.start(mailbox, activation, message, scopes, shard)
  return '+'
end

-- Make a mailbox of this shard ready. Return nil if it has yet to wait, false if it waits no more.
local function wake_here(mailbox)
  local record = redis.call('HGET', active, mailbox)
  local state, _, _, _, attempt, first, _, parts = parse_record(record or '')
  if state and string.find(state, '^[rhHoOq]$') then return nil end
  if state ~= STATE.LIMITED then return false end
  if holds_of(paused, mailbox) then
    redis.call('HSET', active, mailbox, pack_record(STATE.STOPPED, '', attempt, first, parts))
    return false
  end
  redis.call('HSET', active, mailbox, queue(ready, mailbox, attempt, first, parts))
  return true
end

local elsewhere, unready = {}, false

-- Grant a mailbox that is next in a scope's queue its start. Return false if that scope still refuses it, and
-- the tokens that it needs; else true, and whether it starts.
local function grant(scope, mailbox, key)
  local kept, since, shard, at, message, keyed = limits.waiting(mailbox)
  if at ~= scope or key ~= kept then
    redis.call('ZREM', KEYS[7], 'q\n' .. scope .. '\n' .. key .. '\n' .. mailbox)
    return true
  end
  local refusing, scopes = limits.refusing(mailbox, '', message, keyed, scope)
  if refusing == scope then
    for _, each in ipairs(scopes) do
      if each[1] == scope then return false, each[2] end
    end
  elseif refusing then
    limits.wait(mailbox, refusing, message, keyed, shard)
    return true
  end
  local woken = shard ~= '0' or wake_here(mailbox)
  if woken == nil then
    unready = true
    return true
  end
  limits.leave_queue(mailbox, scope, key)
  if woken and #scopes > 0 then limits.grant(mailbox, message, scopes, since, shard, keyed) end
  if shard ~= '0' then elsewhere[#elsewhere + 1], elsewhere[#elsewhere + 2] = mailbox, shard end
  return true, woken
end

local function wake(scope)
  local start = #scope + 4  -- of a member's key, which has 17 digits
  local first, classes = first_in_queue(KEYS[7], scope, PAGE)
  local needed, refused = 1, nil
  for _, member in ipairs(first) do
    local key = string.sub(member, start, start + 16)
    local precedence = limits.precedence_of(key)
    -- Who waits for a token under its caller's place holds up its like, and those that need a token.
    if precedence ~= refused then
      local free, cost = grant(scope, string.sub(member, start + 18), key)
      if not free then
        needed, refused = refused and needed or cost, precedence
        if precedence ~= 10 then break end
      end
    end
  end
  local kept = not refused and redis.call('HGET', KEYS[6], 'v\n' .. scope)
  local turns, at, is_served = turns_in(kept), {1, 1, 1}, false
  local class = not refused and next_class(classes, at, turns)
  while class do
    local member = classes[class][at[class]]
    local key = string.sub(member, start, start + 16)
    local free, starts = grant(scope, string.sub(member, start + 18), key)
    if not free then
      needed = starts
      break
    end
    at[class] = at[class] + 1
    if turns and starts then
      serve(turns, class, classes, at, tonumber(string.sub(key, 2)))
      is_served = true
    end
    class = next_class(classes, at, turns)
  end
  if is_served then redis.call('HSET', KEYS[6], 'v\n' .. scope, text_of_turns(turns, now)) end
  limits.queues[scope] = nil
  wake_limit(limits, ready, due, scope, needed, now, true, unready and math.floor(now / 1000) + PAUSE)
end

-- Take a grant back from a mailbox that does not wait yet, or any more.
local function take_back(mailbox, waits)
  local pass = limits.pass_of(mailbox)
  if not pass or pass.kind ~= PASS.GRANT then return end
  local keyed, any, own = {}, nil, {}
  for _, each in ipairs(limits.scopes_of(mailbox)) do own[each[1]] = true end
  for scope, cost in pairs(pass.scopes) do
    any = any or scope
    if not own[scope] then keyed[#keyed + 1] = cost .. ' ' .. scope end
  end
  if waits and any then
    limits.wait(mailbox, any, pass.message, table.concat(keyed, '\t') .. pass.callers, pass.shard)
    wake_limit(limits, ready, due, any, 1, now, false, math.floor(now / 1000) + PAUSE)
    limits.woken[any] = nil
  else
    limits.drop(mailbox)
  end
end

local function over(mailbox, activation)
  local pass = limits.pass_of(mailbox)
  if pass and pass.kind == PASS.START and pass.activation == activation then limits.drop(mailbox) end
end

local answers = {}
if verb == 'ask' then
  for arg = 4, #ARGV, 6 do
    answers[#answers + 1] = ask(ARGV[arg], ARGV[arg + 1], ARGV[arg + 2], ARGV[arg + 3], ARGV[arg + 4],
      ARGV[arg + 5])
  end
elseif verb == 'over' then
  for arg = 4, #ARGV, 2 do over(ARGV[arg], ARGV[arg + 1]) end
elseif verb == 'hold' then
  local scope = ARGV[4]
  if not limits.rule_of(scope) then return 0 end  -- what allows anything has no bucket
  local bucket = limits.bucket_of(scope)
  bucket.held = ARGV[5] == '0' and 0 or math.max(bucket.held, tonumber(ARGV[5]) * 1000)
  limits.dirty[scope], limits.woken[scope] = true, true
else
  for arg = 4, #ARGV do
    if verb == 'wake' then
      wake(ARGV[arg])
    elseif verb == 'clean' then
      limits.dirty[ARGV[arg]] = limits.bucket_of(ARGV[arg]) ~= nil
    else
      take_back(ARGV[arg], verb == 'again')
    end
  end
end
limits.keep(ready, due)
return verb == 'ask' and answers or verb == 'wake' and elsewhere or #ARGV - 3
