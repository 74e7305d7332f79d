-- Perform the steps one by one.
--
-- What follows, to the end of 7_perform.lua, is one function. A function that is made at the top looks for
-- each variable that it shares among all that are shared; one that is made in here has it at once. That is a
-- third of what a script costs for one step.
local function performing()

local ready, active, due, paused, parked, dead, lone =
  KEYS[1], KEYS[2], KEYS[5], KEYS[6], KEYS[7], KEYS[8], KEYS[11]
local group, owner = ARGV[1], ARGV[2]
local call, try, sub, find, format = redis.call, redis.pcall, string.sub, string.find, string.format

-- What limits say before a command starts: functions that are there only if limits are.
local limit_verdict, check_limits, is_limited, is_paid, would_wait, place_of, is_place_wanted, named_flow

if limits then
  -- Return nil if a command may start; 'ask' if its worker has to ask the first shard, and has not; else the
  -- limit that refuses it. Nothing is changed, and nothing changes it before the start of this step.
  function limit_verdict(step, reads)
    if step.verdict == nil then
      local scopes, asks = limits.scopes_of(step.name, reads)
      step.scopes = scopes
      step.verdict = asks and 'ask'
        or (scopes[1] and limits.refusing_of(scopes, step.name, step.activation, '')) or false
    end
    return step.verdict or nil
  end

  -- Return whether an entity's start is limited.
  function is_limited(name)
    local scopes, asks = limits.scopes_of(name)
    return #scopes > 0 or asks
  end

  -- Return whether a command may have callers that have places for it: its worker reads whether (see
  -- serialization/envelope_options.py).
  local function may_have_callers(step, head)
    local entry = head[2] and head or call('XRANGE', step.box, head[1], head[1])[1]
    for _, field in ipairs(entry and fields_of(lone, step.name, entry[2]) or {}) do
      if find(field, '\161c', 1, true) and find(field, '\161c[\129-\143]') then return true end
    end
    return false
  end

  -- Return whether a command was suspended: it took its token when it first started.
  function is_paid(parts, head)
    return parts ~= '' and find(parts .. '|', '|paid=' .. head[1] .. '|', 1, true)
  end

  local flow_of = nil

  -- Return what an entity waits in, nil if that is the normal class without a tenant.
  function named_flow(parts, head)
    if parts == '' or not find(parts, '|f=', 1, true) then return nil end
    flow_of = flow_of or limits.new_flow_of()
    local flow = flow_of(parts, head[1])
    return flow ~= '1' and flow or nil
  end

  -- Return what `limit_verdict` says, and carry it out: tokens are deducted, or the entity stands in the
  -- queue of the limit that refuses it. What callers may have places for is asked. `others` are the costs of
  -- further entities.
  function check_limits(step, head, parts, others)
    if step.grant == head[1] then return nil end
    local reads = others .. (is_paid(parts, head) and limits.PAID or '')
    local flow = named_flow(parts, head)
    if flow then reads = reads .. '\t~flow=' .. flow end
    local refusing = others ~= '' and not is_home and 'ask' or limit_verdict(step, reads)
    if refusing == 'ask' or (refusing and may_have_callers(step, head)) then return 'ask' end
    if refusing then
      limits.wait(step.name, refusing, '', reads, '0')
      return refusing
    end
    if step.scopes[1] then limits.start(step.name, step.activation, '', step.scopes, '0') end
  end

  -- Return whether a lone command would be refused. It is not changed.
  function would_wait(step)
    local refusing = not step.grant and limit_verdict(step)
    return refusing and refusing ~= 'ask'
  end

  -- Return the part of an answer that says that this lease has a place.
  function place_of(name)
    return is_home and limits.pass_of(name) and '|place=1' or ''
  end

  -- Return whether another entity waits for a place that this one has.
  function is_place_wanted(name)
    local pass = is_home and limits.pass_of(name)
    for scope in pairs(pass and pass.scopes or {}) do
      if limits.is_queued(scope) then return true end
    end
    return false
  end
end
