-- limit_passes: who has passed a limit: the tokens and places of a start, of a grant, and of a mailbox that
-- runs (see shared/limits.lua).

-- Add to `limits` what reads, gives and takes passes.
local function add_passes(limits, state_key, places_key, now)
  local call, match, find, sub, max, min =
    redis.call, string.match, string.find, string.sub, math.max, math.min
  local counts, moved, woken, dirty = limits.counts, limits.moved, limits.woken, limits.dirty
  local passes, changed, read = {}, {}, {}
  local MOST = 1000  -- fields and members of a request

  -- Take a place or give it back. Places are written together, before they are counted. A new one adds to the
  -- count that is known.
  function limits.move_place(verb, scope, mailbox, is_new)
    moved['s\n' .. scope .. '\n' .. mailbox] = verb
    counts[scope] = is_new and counts[scope] and counts[scope] + 1 or nil
  end
  local function write_all(verb, key, list)
    for from = 1, #list, 2 * MOST do call(verb, key, unpack(list, from, min(from + 2 * MOST - 1, #list))) end
  end
  function limits.write_places()
    local taken, free = {}, {}
    for member, verb in pairs(moved) do
      moved[member] = nil
      if verb == 'ZADD' then
        taken[#taken + 1], taken[#taken + 2] = 0, member
      else
        free[#free + 1] = member
      end
    end
    write_all('ZADD', places_key, taken)
    write_all('ZREM', places_key, free)
  end

  local function keep_read(mailbox, text)
    local kind, since, shard, activation, message, rest =
      match(text or '', '^(%a)|(%d+)|%d+|(%d+)\n([^\n]*)\n([^\n]*)\n(.*)$')
    if not kind then
      passes[mailbox] = false
      return
    end
    local known = read[rest]  -- most have the same
    if not known then
      local costs, at = limits.costs_in(rest)
      known = {scopes = {}, callers = at and sub(rest, at) or ''}
      for cost, scope in costs do known.scopes[scope] = tonumber(cost) end
      read[rest] = known
    end
    passes[mailbox] = {
      kind = kind, activation = activation, message = message, since = since, shard = shard,
        scopes = known.scopes, callers = known.callers,
    }
  end
  function limits.read_passes(mailboxes)
    local fields = {}
    for i, mailbox in ipairs(mailboxes) do fields[i] = 'p\n' .. mailbox end
    for i, text in ipairs(call('HMGET', state_key, unpack(fields))) do
      if text then keep_read(mailboxes[i], text) else passes[mailboxes[i]] = false end
    end
  end
  function limits.pass_of(mailbox)
    if passes[mailbox] == nil then keep_read(mailbox, call('HGET', state_key, 'p\n' .. mailbox)) end
    return passes[mailbox]
  end
  function limits.keep_pass(mailbox, kind, activation, message, since, shard, scopes, callers)
    passes[mailbox] = {
      kind = kind, activation = activation, message = message, since = since, shard = shard, scopes = scopes,
        callers = callers or '',
    }
    changed[mailbox] = true
  end
  -- Write the passes that a script has changed, all at once.
  function limits.keep_passes()
    local kept, gone, granted_at, text_of = {}, {}, string.format('%.0f', now), {}
    for mailbox in pairs(changed) do
      local pass = passes[mailbox]
      if pass then
        local scopes = text_of[pass.scopes]
        if not scopes then
          local texts = {}
          for scope, cost in pairs(pass.scopes) do texts[#texts + 1] = cost .. ' ' .. scope end
          scopes = table.concat(texts, '\t')
          text_of[pass.scopes] = scopes
        end
        kept[#kept + 1] = 'p\n' .. mailbox
        kept[#kept + 1] = pass.kind .. '|' .. pass.since .. '|' .. granted_at .. '|' .. pass.shard .. '\n'
          .. pass.activation .. '\n' .. pass.message
          .. '\n' .. scopes .. pass.callers
      else
        gone[#gone + 1] = 'p\n' .. mailbox
      end
    end
    write_all('HSET', state_key, kept)
    write_all('HDEL', state_key, gone)
  end

  -- Return the scopes of a list that have places, of which no caller has one; the same table for all that
  -- share the list.
  local function places_in(list)
    if not list.places then
      list.places = {}
      for _, each in ipairs(list) do
        if limits.rule_of(each[1]).most and not each[3] then list.places[each[1]] = each[2] end
      end
    end
    return list.places
  end
  -- Take the places that a mailbox has not; return those that it holds now, and whether any has changed.
  local function move_places(mailbox, pass, list, keeps)
    local before, held, changes = pass.scopes, {}, false
    for _, each in ipairs(list) do
      local scope = each[1]
      if limits.rule_of(scope).most and (not each[3] or (keeps and before[scope])) then
        if not (keeps and before[scope]) then
          limits.move_place('ZADD', scope, mailbox)
          changes = true
        end
        held[scope] = each[2]
      end
    end
    for scope, cost in pairs(before) do
      if pass.kind == PASS.GRANT then limits.reserve(scope, -cost) end
      if not held[scope] then
        limits.move_place('ZREM', scope, mailbox)
        woken[scope], changes = true, true
      end
    end
    return held, changes or not (keeps and next(before))
  end

  -- Deduct the tokens and keep the places of a mailbox that starts a command. Nothing refuses it.
  function limits.start(mailbox, activation, message, list, shard)
    for _, each in ipairs(list) do
      local scope, rule, bucket = each[1], limits.rule_of(each[1]), limits.bucket_of(each[1])
      if rule.tick then
        bucket.full, dirty[scope] =
          max(min(bucket.full, now + rule.burst * rule.tick), now) + min(each[2], rule.burst) * rule.tick,
          true
      end
    end
    local pass, held, changes = limits.pass_of(mailbox), nil, true
    if pass then
      held, changes = move_places(mailbox, pass, list,
        pass.kind == PASS.START and pass.activation == activation)
      if pass.kind == PASS.GRANT then call('ZREM', places_key, 'g\n' .. mailbox) end
    else
      held = places_in(list)
      for scope in pairs(held) do limits.move_place('ZADD', scope, mailbox, true) end
    end
    if not next(held) then
      if pass then changed[mailbox] = true end
      passes[mailbox] = false
    elseif changes then
      limits.keep_pass(mailbox, PASS.START, activation, message, '0', shard, held)
    end
  end

  -- Give back the tokens of a start that called no handler; who waits for them is looked at again.
  function limits.give_back(list)
    for _, each in ipairs(list) do
      local scope, rule, bucket = each[1], limits.rule_of(each[1]), limits.bucket_of(each[1])
      if rule.tick then
        bucket.full, dirty[scope] = bucket.full - min(each[2], rule.burst) * rule.tick, true
        woken[scope] = true
      end
    end
  end

  -- Take a pass back: its tokens are free, its places go to who waits for them.
  function limits.drop(mailbox)
    local pass = limits.pass_of(mailbox)
    if not pass then return end
    if pass.kind == PASS.GRANT then call('ZREM', places_key, 'g\n' .. mailbox) end
    for scope, cost in pairs(pass.scopes) do
      if pass.kind == PASS.GRANT then limits.reserve(scope, -cost) end
      limits.move_place('ZREM', scope, mailbox)
      woken[scope] = true
    end
    passes[mailbox], changed[mailbox] = false, true
  end
end

