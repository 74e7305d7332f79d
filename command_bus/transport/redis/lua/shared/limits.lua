-- limits: rates and places, which a command needs to start.
--
-- A rule is a field of the hash `rules`: 'bus', 'type:<entity type>', 'entity:<entity type>' or 'name:<name>' -> us per token|burst|places, each
-- empty if it does not limit that. A scope is what shares one bucket: 'bus', 'type:<entity type>', 'entity:<mailbox>', 'name:<name>:<key>'.
-- 'keyed:<entity type>' says that a class of this type names limits by a key, which only a worker can read. All shards have the same rules;
-- what follows is on the first shard, which decides about all mailboxes.
-- `limits` is a hash: b, newline, scope -> full again at us|tokens reserved|held until us
--                     w, newline, mailbox -> since|shard, the scope that refused it, message, what its worker reads; newline between them
--                     p, newline, mailbox -> kind|since|granted at us|shard, activation, message, costs and scopes, callers; newline between them
-- `places` is a sorted set without scores, in the order of its members:  q, newline, scope, newline, since, newline, mailbox: the queue
--                                                                        s, newline, scope, newline, mailbox: a place that is taken
--
-- Tokens are deducted at a start (GCRA: a bucket is a time). A pass of the kind g is a grant: its tokens are reserved and its places taken
-- until its mailbox starts, or gives its activation up. One of the kind s has the places of a mailbox that runs, for one activation.
-- What a worker reads of a command is 'cost scope' for each limit by a key, with tabs between them, then for each handler that waits for this
-- command a tab, '~activation mailbox'. Whose caller has a place starts without one of its own. If it waits for a token there, its since is a
-- tenth of the time, with a 0 before it, so it stands before all that wait for a place: its caller keeps one until it has run.

local function limiter(rules_key, state_key, places_key, now, is_home)
  local call, match, find, sub, max, min = redis.call, string.match, string.find, string.sub, math.max, math.min
  local rules, kinds, buckets, dirty, passes, changed, queues, counts, woken = {}, {}, {}, {}, {}, {}, {}, {}, {}
  local limits = {buckets = buckets, dirty = dirty, woken = woken, queues = queues, passes = passes, changed = changed}  -- woken: scopes whose queue is looked at again

  function limits.rule_of(scope)
    local name = match(scope, '^%a+:[^:]*') or scope
    if rules[name] == nil then
      local tick, burst, most = match(call('HGET', rules_key, name) or '', '^([^|]*)|([^|]*)|([^|]*)')
      rules[name] = tick and {tick = tonumber(tick), burst = tonumber(burst), most = tonumber(most)} or false
    end
    return rules[name]
  end

  -- Return an iterator over costs and scopes, and where the callers begin behind them, if there are any.
  local function costs_in(text)
    local at = find(text, '\t~', 1, true)
    return string.gmatch(at and sub(text, 1, at - 1) or text, '(%d+) ([^\t]+)'), at
  end

  -- Return the scopes of which a command's callers have places now. Nothing is believed of a caller but its name.
  function limits.lent(keyed)
    local lent = {}
    if (keyed or '') == '' then return lent end
    for activation, mailbox in string.gmatch(keyed, '\t~(%S+) ([^\t]+)') do
      local pass = limits.pass_of(mailbox)
      if pass and pass.kind == 's' and pass.activation == activation then
        for scope in pairs(pass.scopes) do lent[scope] = true end
      end
    end
    return lent
  end
  -- Return for each scope its name, its cost and whether a caller has a place there; and whether this mailbox must be asked for at the first
  -- shard, by a worker that knows its command.
  function limits.scopes_of(mailbox, keyed)
    local kind = match(mailbox, '^[^:/]*')
    local known = kinds[kind] or call('HMGET', rules_key, 'entity:' .. kind, 'type:' .. kind, 'bus', 'keyed:' .. kind)
    kinds[kind] = known
    if not known.shared then
      known.shared = {}
      if known[2] then known.shared[1] = {'type:' .. kind, 1} end
      if known[3] then known.shared[#known.shared + 1] = {'bus', 1} end
    end
    local asks = known[4] or (not is_home and (known[1] or #known.shared > 0))
    if not known[1] and (keyed or '') == '' then return known.shared, asks end
    local list, lent = {known[1] and {'entity:' .. mailbox, 1} or nil}, limits.lent(keyed)
    for _, each in ipairs(known.shared) do list[#list + 1] = lent[each[1]] and {each[1], each[2], true} or each end
    for cost, scope in (costs_in(keyed or '')) do
      if limits.rule_of(scope) then list[#list + 1] = {scope, tonumber(cost), lent[scope]} end
    end
    return list, asks
  end
  function limits.bucket_of(scope)
    if not buckets[scope] then
      local full, reserved, held = match(call('HGET', state_key, 'b\n' .. scope) or '', '^([%d.]+)|(%d+)|(%d+)$')
      buckets[scope] = {full = tonumber(full) or 0, reserved = tonumber(reserved) or 0, held = tonumber(held) or 0}
    end
    return buckets[scope]
  end
  -- Return the free tokens. A bucket is never emptier than empty: the clock may have gone back, or the rule been changed.
  function limits.tokens_of(rule, bucket)
    local emptiest = now + rule.burst * rule.tick
    if bucket.full > emptiest then bucket.full, bucket.cut = emptiest, true end
    return rule.burst - max(bucket.full - now, 0) / rule.tick - bucket.reserved
  end

  function limits.reserve(scope, cost)
    local bucket = limits.bucket_of(scope)
    bucket.reserved, dirty[scope] = max(bucket.reserved + cost, 0), true
  end

  function limits.length_of(kind, scope)
    return call('ZLEXCOUNT', places_key, '[' .. kind .. scope .. '\n', '(' .. kind .. scope .. '\11')
  end
  function limits.taken(scope)
    counts[scope] = counts[scope] or limits.length_of('s\n', scope)
    return counts[scope]
  end
  function limits.is_queued(scope)
    if queues[scope] == nil then
      local first = call('ZRANGEBYLEX', places_key, '[q\n' .. scope .. '\n', '(q\n' .. scope .. '\11', 'LIMIT', 0, 1)
      queues[scope] = first[1] or false
    end
    return queues[scope]
  end
  function limits.move_place(verb, scope, mailbox)
    local member = 's\n' .. scope .. '\n' .. mailbox
    local moved = verb == 'ZADD' and call('ZADD', places_key, 0, member) or call('ZREM', places_key, member)
    if counts[scope] then counts[scope] = counts[scope] + (verb == 'ZADD' and moved or -moved) end
    return true
  end

  local function keep_read(mailbox, text)
    local kind, since, shard, activation, message, rest = match(text or '', '^(%a)|(%d+)|%d+|(%d+)\n([^\n]*)\n([^\n]*)\n(.*)$')
    local scopes = {}
    passes[mailbox] = kind and {kind = kind, since = since, shard = shard, activation = activation, message = message, scopes = scopes} or false
    if not kind then return end
    local costs, at = costs_in(rest)
    for cost, scope in costs do scopes[scope] = tonumber(cost) end
    passes[mailbox].callers = at and sub(rest, at) or ''
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
    local pass = {kind = kind, activation = activation, message = message, since = since, shard = shard, scopes = scopes}
    pass.callers = callers or ''
    passes[mailbox], changed[mailbox] = pass, true
  end
  -- Return whether a scope lets a command start. Who has a place there passes its queue, unless it needs a token as well; whose caller has one
  -- passes it in any case.
  function limits.is_free(scope, cost, has_place, is_first, is_lent)
    local rule, bucket = limits.rule_of(scope), limits.bucket_of(scope)
    if bucket.held > now then return false end
    if not is_first and not is_lent and (rule.tick or not has_place) and limits.is_queued(scope) then return false end
    if rule.tick and limits.tokens_of(rule, bucket) + 0.000001 < min(cost, rule.burst) then return false end
    return has_place or is_lent or not rule.most or limits.taken(scope) < rule.most
  end

  -- Return the first scope that refuses a mailbox, nil if none does, and all its scopes. `first_in` is the scope in whose queue it is first.
  function limits.refusing(mailbox, activation, message, keyed, first_in)
    local pass, list = limits.pass_of(mailbox), limits.scopes_of(mailbox, keyed)
    local granted = pass and pass.kind == 'g' and (pass.message == '' or pass.message == message)
    local holds = pass and pass.kind == 's' and pass.activation == activation
    for _, each in ipairs(list) do
      local has = pass and pass.scopes[each[1]]
      local passes = granted and has and limits.still_holds(each[1], each[2], mailbox, each[3])
      if not passes and not limits.is_free(each[1], each[2], holds and has, first_in == each[1], each[3]) then return each[1], list end
    end
    return nil, list
  end

  -- Deduct the tokens and keep the places of a mailbox that starts a command. Nothing refuses it.
  function limits.start(mailbox, activation, message, list, shard)
    local pass, held, changes = limits.pass_of(mailbox), {}, false
    local before = pass and pass.scopes or {}
    local keeps = pass and pass.kind == 's' and pass.activation == activation
    for _, each in ipairs(list) do
      local scope, rule, bucket = each[1], limits.rule_of(each[1]), limits.bucket_of(each[1])
      if rule.tick then
        bucket.full, dirty[scope] = max(min(bucket.full, now + rule.burst * rule.tick), now) + min(each[2], rule.burst) * rule.tick, true
      end
      if rule.most and (not each[3] or (keeps and before[scope])) then
        if not (keeps and before[scope]) then changes = limits.move_place('ZADD', scope, mailbox) end
        held[scope] = each[2]
      end
    end
    for scope, cost in pairs(before) do
      if pass.kind == 'g' then limits.reserve(scope, -cost) end
      if not held[scope] then
        woken[scope], changes = true, limits.move_place('ZREM', scope, mailbox)
      end
    end
    if not next(held) then
      if pass then changed[mailbox] = true end
      passes[mailbox] = false
    elseif not (keeps and next(before)) or changes then
      limits.keep_pass(mailbox, 's', activation, message, '0', shard, held)
    end
  end

  return limits
end
